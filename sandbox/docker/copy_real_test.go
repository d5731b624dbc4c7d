package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

const copyScript = `set -e; echo new >made; echo more >>keep/deep/f; rm -r gone; rm -r opaque; mkdir opaque; echo y >opaque/fresh
	mv moved elsewhere; chmod 600 readonly; ln -sfn made link; mkfifo pipe; echo two >>linked; [ ! -e fifo ]; [ ! -e .caisson ]; id -u`

// copyChanges are the changes of copyScript. Both names of a file with two are
// changed.
var copyChanges = []string{
	"deleted gone", "deleted gone/f", "added elsewhere", "added elsewhere/sub", "added elsewhere/sub/f", "modified keep/deep/f", "modified link",
	"modified linked", "modified linked2", "added made", "deleted moved", "deleted moved/sub", "deleted moved/sub/f", "deleted opaque/in",
	"deleted opaque/in/f", "added opaque/fresh", "added pipe", "mode readonly",
}

func requireCopyChanges(t testing.TB, layers *overlay.Layers, dir *os.File, want []string) {
	t.Helper()
	list, err := layers.Changes(t.Context(), dir, overlay.ReadOptions{})
	must(t, err)
	var got []string
	for _, c := range list.List {
		got = append(got, string(c.Kind)+" "+c.Path)
		if c.Conflict != "" {
			t.Errorf("%s: conflict: %s", c.Path, c.Conflict)
		}
	}
	want = slices.Clone(want)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("changed\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkCopy changes a workspace in a copy. It checks what the host's view, the
// layers and a fresh sandbox see.
func (b *bed) checkCopy(t *testing.T, spec sandbox.Spec, layers *overlay.Layers) {
	worktest.Unchanged(t, b.workspace)
	sb := b.create(t, spec)
	if a := sb.Attestation(); a.WorkspaceMode != "copy" {
		t.Errorf("%+v", a)
	}
	if out, exit := worktest.Shell(t, sb, "cd /workspace; "+copyScript); !exit.Status.Success() || strings.TrimSpace(out) != "10001" {
		t.Fatalf("%v: %q", exit.Status, out)
	}
	op := workspace.Op{Kind: workspace.OpWrite, Path: "by/tool", Content: []byte("tool")}
	if _, err := sb.Apply(t.Context(), op); err != nil {
		t.Error(err)
	}
	worktest.SearchSeesList(t, sb.View())
	if f, err := sb.View().ReadFile(t.Context(), "keep/deep/f", 0, 0); err != nil || string(f.Data) != "kept\nmore\n" {
		t.Errorf("view: %q, %v", f.Data, err)
	}
	must(t, sb.Collect(t.Context()))
	must(t, sb.Destroy(context.Background()))
	if err := sb.Collect(t.Context()); !errors.Is(err, sandbox.ErrLost) && !errors.Is(err, sandbox.ErrState) {
		t.Errorf("collected from what is gone: %v", err)
	}
	want := append(slices.Clone(copyChanges), "added by", "added by/tool")
	requireCopyChanges(t, layers, spec.Workspace.Dir, want)

	spec.Session = newSession()
	spec.Dir = b.spec(t, spec.Session).Dir
	sb = b.create(t, spec)
	if out, _ := worktest.Shell(t, sb, "cd /workspace; cat made keep/deep/f elsewhere/sub/f; ls gone moved opaque; rm made"); out != "new\nkept\nmore\nm\nopaque:\nfresh\n" && !strings.Contains(out, "fresh") {
		t.Errorf("in a fresh sandbox: %q", out)
	}
	must(t, sb.Collect(t.Context()))
	must(t, sb.Destroy(context.Background()))
	want = slices.DeleteFunc(want, func(line string) bool { return line == "added made" || line == "added pipe" })
	requireCopyChanges(t, layers, spec.Workspace.Dir, want)
}

func TestCopy(t *testing.T) {
	needEngine(t)
	b := newBed(t, 0)
	worktest.Furnish(t, b.workspace, 0, 0)
	worktest.Run(t, b.workspace, "mkdir .caisson; echo x >.caisson/config.yaml; rm third hidden group")
	spec := b.spec(t, newSession())
	layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
	small := spec
	small.Workspace.CopyBytes = 1 << 20
	if sb, err := b.backend.Create(t.Context(), small); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), `"big"`) || sb != nil {
		t.Errorf("a workspace that is too large: %v", err)
	}
	b.nothingLeft(t, spec.Session)
	b.checkCopy(t, spec, layers)
}

// hostileScript tries to harm a collection. It changes the content of "times"
// but not its size and times.
const hostileScript = `cd /workspace; mkdir many most; (cd many; seq 100001 | xargs touch); (cd most; seq 20000 | xargs touch); for i in 1 2 3 4 5; do truncate -s 500M huge$i; done; mkfifo pipe
	printf 'echo odd >"$(printf "a\nb\377")"' | sh; ln -s /etc/passwd out; mkdir -p $(printf 'd/%.0s' $(seq 1900)) || :
	printf before >times; touch -d @1000 times`

// Collecting a hostile copy keeps to the bounds of time and size, and names
// what it leaves out.
func TestCopyHostile(t *testing.T) {
	needEngine(t)
	b := newBed(t, 0)
	spec := b.spec(t, newSession())
	layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
	sb := b.create(t, spec)
	if out, exit := worktest.Shell(t, sb, hostileScript); !exit.Status.Success() {
		t.Fatalf("%v: %q", exit.Status, out)
	}
	// Two of the large files fit into the bound of 1 GiB, and a directory may have
	// 100,000 entries.
	err := sb.Collect(t.Context())
	if e, ok := errors.AsType[*overlay.IncompleteError](err); !ok || strings.Join(e.Unread, " ") != "huge3 huge4 huge5 many" {
		t.Fatalf("collected with %v", err)
	}
	if out, exit := worktest.Shell(t, sb, "cd /workspace; printf behind >times; touch -d @1000 times; date -s @1 2>/dev/null; rm huge*; rm -r many most"); !exit.Status.Success() {
		t.Errorf("%v: %q", exit.Status, out)
	}
	must(t, sb.Collect(t.Context()))
	upper := filepath.Join(layers.Dir(), overlay.UpperDir)
	if text, err := os.ReadFile(filepath.Join(upper, "times")); err != nil || string(text) != "behind" {
		t.Errorf("%q, %v", text, err)
	}
	if target, err := os.Readlink(filepath.Join(upper, "out")); err != nil || target != "/etc/passwd" {
		t.Errorf("%q, %v", target, err)
	}
	if _, err := os.Lstat(filepath.Join(upper, "a\nb\xff")); err != nil {
		t.Error(err)
	}
	must(t, sb.Destroy(context.Background()))
}
