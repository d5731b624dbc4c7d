package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

func (b *bed) overlaid(t testing.TB, spec *sandbox.Spec) {
	t.Helper()
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, spec.Workspace.Layers, b.workspace)
}

// TestOverlay has root's cases of the overlay matrix.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: workspaces of several owners")
	}
	t.Parallel()
	onIsolations(t, isolations, func(t *testing.T, k Kind, isolation sandbox.Isolation) {
		for _, uid := range sandboxtest.Sampled(t, 0, 1000, sandbox.CommandUID) {
			t.Run(fmt.Sprint(uid), func(t *testing.T) {
				b := newBed(t, k, uid)
				b.backend.options.Isolation = isolation
				worktest.Furnish(t, b.workspace, uid, uid)
				worktest.Unchanged(t, b.workspace)
				spec := b.spec(t, "ses_overlay1")
				b.overlaid(t, &spec)
				sb := b.start(t, spec)
				a := sb.Attestation()
				if a.WorkspaceMode != "overlay" || a.WorkspaceOwner != fmt.Sprintf("%d:%d", uid, uid) || len(a.Lost) > 0 && isolation == "" {
					t.Errorf("%+v", a)
				}
				cell := worktest.Cell{Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: uid, GID: uid, Thirds: true, OwnKernel: k == GVisor, SeesPipes: isolation != ""}
				worktest.Overlay(t, cell)

				// A fresh sandbox on the same layers goes on.
				must(t, sb.Destroy(context.Background()))
				if _, err := sb.View().Stat(t.Context(), "made"); !errors.Is(err, sandbox.ErrLost) {
					t.Errorf("view of what is gone: %v", err)
				}
				second := b.spec(t, "ses_overlay2")
				second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
				cell.Sandbox, cell.SeesPipes = b.start(t, second), false
				worktest.SeesChange(t, cell)
				if uid == 0 {
					worktest.Archives(t, cell.Sandbox)
				}
			})
		}
	})
}

func TestOverlayOfAUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	onIsolations(t, sandboxtest.Sampled(t, isolations...), func(t *testing.T, k Kind, isolation sandbox.Isolation) {
		test := "TestUserOverlay"
		if isolation != "" {
			test += "Process"
		}
		asUserWith(t, k, test, furnishThirds(t))
	})
}

// noDevices tells the tests of another user that no whiteout can be a device.
const noDevices = "CAISSON_OCI_NO_DEVICES"

// In a container, the state directory lies on an overlay of the kernel, which
// makes no whiteouts for others.
func TestOverlayOnOverlay(t *testing.T) {
	needRoot(t)
	t.Parallel()
	base := t.TempDir()
	must(t, os.Chmod(base, 0o755))
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(filepath.Join(base, name), 0o777))
		must(t, os.Chmod(filepath.Join(base, name), 0o777))
	}
	merged := filepath.Join(base, "merged")
	must(t, unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)))
	t.Cleanup(func() { must(t, unix.Unmount(merged, unix.MNT_DETACH)) })
	if err := unix.Mknod(filepath.Join(merged, "device"), unix.S_IFCHR, 0); err == nil {
		t.Fatal("control: an overlay of this kernel makes whiteouts")
	}
	asUserBelow(t, merged, GVisor, "TestUserOverlayProcess", furnishThirds(t), noDevices+"=1")
}

func furnishThirds(t *testing.T) func(dir string) {
	return func(dir string) {
		thirds := filepath.Join(dir, "thirds")
		must(t, os.Mkdir(thirds, 0o755))
		must(t, os.Chown(thirds, userID, userID))
		worktest.Furnish(t, thirds, userID, userID)
	}
}

// TestUserOverlay is run by TestOverlayOfAUser as another user.
func TestUserOverlay(t *testing.T) { userOverlay(t, "") }

// TestUserOverlayProcess is run by TestOverlayOfAUser as another user.
func TestUserOverlayProcess(t *testing.T) { userOverlay(t, sandbox.IsolationProcess) }

func userOverlay(t *testing.T, isolation sandbox.Isolation) {
	if os.Getenv(userHelper) == "" {
		return // nothing to do on its own
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		b.backend.options.Isolation = isolation
		worktest.Furnish(t, b.workspace, os.Geteuid(), os.Getegid())
		worktest.Unchanged(t, b.workspace)
		spec := b.spec(t, "ses_overlay1")
		b.overlaid(t, &spec)
		sb := b.start(t, spec)
		if a := sb.Attestation(); a.WorkspaceMode != "overlay" || a.WorkspaceOwner != fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()) {
			t.Errorf("%+v", a)
		}
		cell := worktest.Cell{
			Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: os.Geteuid(), GID: os.Getegid(), OwnKernel: k == GVisor, SeesPipes: isolation != "",
			FileWhiteouts: os.Getenv(noDevices) != "",
		}
		worktest.Overlay(t, cell)
		must(t, sb.Destroy(context.Background()))
		must(t, os.Remove(filepath.Join(spec.Workspace.Layers, "work")))
		must(t, os.Mkdir(filepath.Join(spec.Workspace.Layers, "work"), 0o700))
		second := b.spec(t, "ses_overlay2")
		second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
		cell.Sandbox, cell.SeesPipes = b.start(t, second), false
		worktest.SeesChange(t, cell)
		worktest.OutOfReach(t, cell.Sandbox)
		if isolation == sandbox.IsolationProcess {
			layersHidden(t, k)
			frozenLayers(t, k)
		}
		userConfig(t, k, isolation)
		userCopy(t, k, isolation)
		if isolation == "" && k == GVisor {
			sameChanges(t, k)
		}
		userThirds(t, k, isolation)
		overlayCancelled(t, k, isolation)
	})
}

// attempts are what no command may do to reach the layers of its overlay, or to
// make whiteouts itself. A line for each that works.
const attempts = `for c in "umount /workspace" "mount -t tmpfs none /tmp" "mount -o bind /usr /tmp" "mknod /workspace/w c 0 0" "ls /proc/1/root/" "ls /run/caisson-layers"; do
	$c >/dev/null 2>&1 && echo "$c"; done; `

// Neither commands nor root inside reach the layers in another way.
func layersHidden(t *testing.T, k Kind) {
	for i, user := range []sandbox.UserPolicy{sandbox.UserOwner, sandbox.UserRoot} {
		b := newBed(t, k, os.Geteuid())
		b.backend.options.Isolation = sandbox.IsolationProcess
		spec := b.spec(t, fmt.Sprintf("ses_hidden%d", i))
		spec.User = user
		b.overlaid(t, &spec)
		out, _ := worktest.Shell(t, b.start(t, spec), attempts+"grep -c caisson-layers /proc/self/mountinfo; grep -c ' /workspace .* overlay ' /proc/self/mountinfo")
		if out != "0\n1\n" {
			t.Errorf("as %s: %q", user, out)
		}
	}
	control, err := exec.CommandContext(t.Context(), "unshare", "-rmpf", "--mount-proc", "sh", "-c", attempts).CombinedOutput()
	if got := string(control); !strings.Contains(got, "mount -t tmpfs none /tmp\n") || !strings.Contains(got, "ls /proc/1/root/\n") {
		t.Errorf("control: without a sandbox only this works: %q, %v", got, err)
	}
}

// A forked session sees what the first one left in a frozen layer, and what it
// removed.
func frozenLayers(t *testing.T, k Kind) {
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = sandbox.IsolationProcess
	worktest.Run(t, b.workspace, "mkdir gone keep; echo x >gone/f; echo k >keep/f; echo k >keep/g")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, "ses_frozen1")
	layers := worktest.CreateLayers(t, &spec, sandbox.ModeOverlay, b.state)
	sb := b.start(t, spec)
	if out, _ := worktest.Shell(t, sb, "cd /workspace; rm -r gone keep/f; echo n >new; echo g >>keep/g; ls . keep"); out != ".:\nkeep\nnew\n\nkeep:\ng\n" {
		t.Errorf("%q", out)
	}
	must(t, sb.Destroy(context.Background()))
	must(t, layers.Freeze(t.Context(), filepath.Join(b.state, "frozen")))
	second := b.spec(t, "ses_frozen2")
	second.Workspace.Mode, second.Workspace.Layers, second.Workspace.Lowers = sandbox.ModeOverlay, spec.Workspace.Layers, layers.Lowers()
	sb = b.start(t, second)
	if out, _ := worktest.Shell(t, sb, "cd /workspace; ls . keep; cat keep/g; rm new; mkdir gone; ls gone; echo two >>keep/g"); out != ".:\nkeep\nnew\n\nkeep:\ng\nk\ng\n" {
		t.Errorf("a fork sees %q", out)
	}
	must(t, sb.Destroy(context.Background()))
	if got, _ := changesOf(t, layers, spec.Workspace.Dir); got != "deleted gone/f\ndeleted keep/f\nmodified keep/g\n" {
		t.Errorf("%s", got)
	}
}

// A copy comes back as its changes, on any file system.
func userCopy(t *testing.T, k Kind, isolation sandbox.Isolation) {
	if k != GVisor {
		return
	}
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = isolation
	worktest.Run(t, b.workspace, "mkdir gone keep; echo x >gone/f; echo k >keep/f; echo a >a")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, "ses_copy")
	layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
	sb := b.start(t, spec)
	if _, exit := worktest.Shell(t, sb, "cd /workspace; set -e; rm -r gone; rm keep/f; echo b >>a; echo n >new"); !exit.Status.Success() {
		t.Error(exit.Status)
	}
	must(t, sb.Collect(t.Context()))
	must(t, sb.Destroy(context.Background()))
	want := "modified a\ndeleted gone\ndeleted gone/f\ndeleted keep/f\nadded new\n"
	if got, _ := changesOf(t, layers, spec.Workspace.Dir); got != want {
		t.Errorf("%s", got)
	}
}

// changesOf returns a line for each change, and their diff.
func changesOf(t testing.TB, layers *overlay.Layers, dir *os.File) (list, diff string) {
	t.Helper()
	c, err := layers.Changes(t.Context(), dir, overlay.ReadOptions{})
	must(t, err)
	var lines, text strings.Builder
	for _, c := range c.List {
		fmt.Fprintf(&lines, "%s %s\n", c.Kind, c.Path)
	}
	_, err = layers.Diff(t.Context(), dir, c, &text, overlay.DiffOptions{})
	must(t, err)
	return lines.String(), text.String()
}

// varied makes what commands of one session may do to files.
const varied = `cd /workspace; set -e; umask 022
	rm -r gone; mv moved elsewhere; rm -r opaque; mkdir opaque; echo y >opaque/fresh; ln linked hard; echo two >>linked; ln -sfn script link; ln -s made link2
	echo new >made; chmod 640 made; chmod 755 readonly; mkdir -p a/b/c; echo c >a/b/c/f; mv a/b b2; rmdir a; rm outside; mkdir outside; echo o >outside/o
	echo s >secret; chmod 0 secret; mkdir shut; echo in >shut/in; chmod 0500 shut; : >empty; printf '\0\1' >binary; mv keep keep2; mv keep2 keep
	echo closed >>closed/f; echo 2 >>closed2/in/f; chmod 600 closed/g; chmod 0555 set; mkdir dark; echo d >dark/d; chmod 0 dark; rm -r sub/tree; mkdir sub/tree; mv sub/other sub/tree/other`

// What is recorded of the same commands does not depend on the isolation.
func sameChanges(t *testing.T, k Kind) {
	var lists, diffs []string
	for i, isolation := range []sandbox.Isolation{sandbox.IsolationNamespaces, sandbox.IsolationProcess} {
		b := newBed(t, k, os.Geteuid())
		b.backend.options.Isolation = isolation
		worktest.Furnish(t, b.workspace, os.Geteuid(), os.Getegid())
		worktest.Run(t, b.workspace, "mkdir -p closed sub/tree/x sub/other; echo c >closed/f; echo g >closed/g; echo x >sub/tree/x/y; echo o >sub/other/o; chmod 555 closed; mkdir -p closed2/in; echo c >closed2/in/f; chmod 555 closed2/in closed2")
		before := worktest.Tree(t, b.workspace)
		spec := b.spec(t, fmt.Sprintf("ses_same%d", i))
		layers := worktest.CreateLayers(t, &spec, sandbox.ModeOverlay, b.state)
		sb := b.start(t, spec)
		if out, exit := worktest.Shell(t, sb, varied); !exit.Status.Success() {
			t.Errorf("%s: %v %s", isolation, exit.Status, out)
		}
		must(t, sb.Destroy(context.Background()))
		list, diff := changesOf(t, layers, spec.Workspace.Dir)
		lists, diffs = append(lists, list), append(diffs, diff)
		if d := cmp.Diff(before, worktest.Tree(t, b.workspace)); d != "" {
			t.Errorf("%s: the workspace was changed: %s", isolation, d)
		}
		must(t, exec.CommandContext(t.Context(), "chmod", "-R", "u+rwX", filepath.Join(spec.Workspace.Layers, "upper"), b.workspace).Run()) // so that all can be removed
	}
	if d := cmp.Diff(lists[0], lists[1]); d != "" || strings.Count(lists[0], "\n") < 30 {
		t.Errorf("changes with namespaces and without (-with +without):\n%s", d)
	}
	if d := cmp.Diff(diffs[0], diffs[1]); d != "" {
		t.Errorf("diff with namespaces and without (-with +without):\n%s", d)
	}
}

func TestSameChanges(t *testing.T) {
	runtimePath(t, GVisor)
	sameChanges(t, GVisor)
}

// Caisson's own configuration can't be changed in an overlay.
func userConfig(t *testing.T, k Kind, isolation sandbox.Isolation) {
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = isolation
	worktest.Run(t, b.workspace, "mkdir .caisson; echo a >.caisson/c; echo a >beside")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, "ses_config")
	b.overlaid(t, &spec)
	out, _ := worktest.Shell(t, b.start(t, spec), "cd /workspace; echo x >beside && cat beside; echo x >.caisson/c && echo written; mv .caisson other && echo moved; rm -r .caisson; ls -d .caisson")
	if out != "x\n.caisson\n" {
		t.Errorf("%q", out)
	}
}

// Files of users that the overlay doesn't know can be read and removed as far
// as their modes allow. They can't be changed, or belong to this user then.
// Nothing is lost.
func userThirds(t *testing.T, k Kind, isolation sandbox.Isolation) {
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = isolation
	b.workspace = filepath.Join(os.Getenv(userHelper), "thirds")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, "ses_thirds")
	b.overlaid(t, &spec)
	sb := b.start(t, spec)
	lost, want := workmount.LostOthers, "t\nown\n"
	if isolation == sandbox.IsolationProcess {
		lost, want = workmount.LostOwners, "t\nchanged\nown\nmade\n"
	}
	if !slices.Contains(sb.Attestation().Lost, lost) {
		t.Errorf("not attested: %q", sb.Attestation().Lost)
	}
	out, exit := worktest.Shell(t, sb, "cd /workspace; cat third; echo x >>third && echo changed; cat hidden && echo read; rm -f third; echo own >third; cat third; echo g >set/in && echo made")
	if out != want {
		t.Errorf("%v: %q", exit.Status, out)
	}
	if got, err := sb.View().ReadFile(t.Context(), "third", 0, 0); err != nil || string(got.Data) != "own\n" {
		t.Errorf("view: %q %v", got.Data, err)
	}
}

// The host's view returns the same as a Reader of the directory.
func TestOverlayView(t *testing.T) {
	t.Parallel()
	onIsolations(t, sandboxtest.Sampled(t, isolations...), func(t *testing.T, k Kind, isolation sandbox.Isolation) {
		b := newBed(t, k, os.Geteuid())
		b.backend.options.Isolation = isolation
		worktest.Layout(t, b.workspace)
		worktest.Control(t, b.workspace)
		spec := b.spec(t, "ses_view")
		b.overlaid(t, &spec)
		worktest.View(t, b.workspace, b.start(t, spec).View())
	})
}

// Wherever a start is cancelled, nothing of its overlay is left.
func TestOverlayCancelled(t *testing.T) {
	t.Parallel()
	onIsolations(t, sandboxtest.Sampled(t, isolations...), overlayCancelled)
}

func overlayCancelled(t *testing.T, k Kind, isolation sandbox.Isolation) {
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = isolation
	layers := filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, layers, b.workspace)
	for i := range 12 {
		spec := b.spec(t, fmt.Sprintf("ses_given%dup", i))
		spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
		sb, err := b.backend.Create(ctx, spec)
		cancel()
		if err == nil {
			must(t, sb.Destroy(context.Background()))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up after %d ms: %v", i*i, err)
		}
		b.nothingLeft(t, spec.Session)
	}
	spec := b.spec(t, "ses_after")
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
	if got := output(t, b.start(t, spec), "echo x >made; cat made"); got != "x\n" {
		t.Errorf("afterwards: %q", got)
	}
}
