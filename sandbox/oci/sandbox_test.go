package oci

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

func output(t testing.TB, sb sandbox.Sandbox, script string) string {
	t.Helper()
	var buf bytes.Buffer
	exit, err := sandbox.Run(t.Context(), sb, sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Stdout: &buf, Stderr: &buf})
	must(t, err)
	if !exit.Status.Success() {
		t.Errorf("%s: %v: %s", script, exit.Status, buf.String())
	}
	return buf.String()
}

func TestNewRefusesWhatCannotBeRight(t *testing.T) {
	good := Options{Kind: Runc, RuntimePath: "/r", GuestPath: "/g", StateDir: "/s"}
	for name, change := range map[string]func(*Options){
		"kind": func(o *Options) { o.Kind = "kata" }, "runtime": func(o *Options) { o.RuntimePath = "runc" },
		"guest": func(o *Options) { o.GuestPath = "" }, "state": func(o *Options) { o.StateDir = "." },
	} {
		o := good
		change(&o)
		if _, err := New(o); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if b, err := New(good); err != nil || b.Name() != "runc" {
		t.Errorf("good options: %v", err)
	}
}

func TestCheck(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		info, err := b.backend.Check(t.Context())
		must(t, err)
		if info.Backend != string(k) || info.Runtime == "" || info.RuntimeVersion == "" || !info.Local || info.Rootless != (os.Geteuid() != 0) {
			t.Errorf("info %+v", info)
		}
		if info.Rootless && len(info.Lost) == 0 {
			t.Error("an ordinary user loses nothing")
		}
	})
}

// A runtime that is missing or damaged is never replaced by another.
func TestNoFallback(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		for name, tt := range map[string]struct {
			path string
			want error
		}{
			"absent":  {filepath.Join(b.state, "absent"), sandbox.ErrNotFound},
			"another": {"/bin/true", sandbox.ErrUnavailable},
			"failing": {"/bin/false", sandbox.ErrUnavailable},
		} {
			o := b.backend.options
			o.RuntimePath = tt.path
			other, err := New(o)
			must(t, err)
			if _, err := other.Check(t.Context()); !errors.Is(err, tt.want) {
				t.Errorf("%s: check: %v, want %v", name, err, tt.want)
			}
			sb, err := other.Create(t.Context(), b.spec(t, "ses_none"))
			if err == nil {
				t.Errorf("%s: a sandbox runs: %+v", name, sb.Attestation())
			} else if !errors.Is(err, tt.want) {
				t.Errorf("%s: create: %v, want %v", name, err, tt.want)
			}
			b.nothingLeft(t, "ses_none")
		}
	})
}

// The conformance suite has other specs that are refused.
func TestCreateRefuses(t *testing.T) {
	b := newBed(t, GVisor, os.Geteuid())
	for name, tt := range map[string]struct {
		change func(*sandbox.Spec)
		want   error
	}{
		"image of no store":   {func(s *sandbox.Spec) { s.Image = images.Reference{Scheme: images.SchemeName, Value: "x"} }, sandbox.ErrUnsupported},
		"directory elsewhere": {func(s *sandbox.Spec) { s.Dir = t.TempDir() }, sandbox.ErrInvalid},
	} {
		spec := b.spec(t, "ses_bad")
		tt.change(&spec)
		if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		b.nothingLeft(t, "ses_bad")
	}
}

// TestAttestation compares the attestation with the request and with a
// command's view.
func TestAttestation(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		spec := b.spec(t, "ses_attest")
		spec.Resources.MemoryBytes, spec.Resources.PIDs, spec.Resources.MilliCPUs, spec.Resources.OpenFiles = 512<<20, 128, 1500, 512
		spec.Resources.TmpBytes = 48 << 20 // with the others within the memory limit, so that it is as asked
		a := b.start(t, spec).Attestation()
		if a.Limits.OpenFiles != 512 || a.Limits.TmpBytes != spec.Resources.TmpBytes {
			t.Errorf("limits %+v", a.Limits)
		}
		if os.Geteuid() == 0 && (a.Limits.MemoryBytes != 512<<20 || a.Limits.PIDs != 128 || a.Limits.MilliCPUs != 1500) {
			t.Errorf("limits %+v", a.Limits)
		}
		if (k == GVisor) != (a.SeccompProfile == "") || a.Seccomp != "filter" {
			t.Errorf("seccomp %q, profile %q", a.Seccomp, a.SeccompProfile)
		}
		if (k == GVisor) != strings.Contains(a.Kernel, "gvisor") {
			t.Errorf("kernel %q", a.Kernel)
		}
		if !strings.HasPrefix(a.ImageDigest, "sha256:") || len(a.GuestSHA256) != 64 || a.Git != "ro" || a.WorkspaceMode != "bind" {
			t.Errorf("attestation %+v", a)
		}
	})
}

// A container that is weaker than requested is refused. The same check passes
// without a change.
func TestWeakContainerIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an ordinary user has no cgroups")
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, 0)
		sb := b.start(t, b.spec(t, "ses_weak")).(*lifecycle.Sandbox)
		c := containerOf(sb)
		hello := sb.Guest().Hello()
		private, err := privateNamespaces(c.process.pid)
		must(t, err)
		verify := func() error { return errors.Join(sb.Verify(hello), c.verifyContainer(hello, private)) }
		must(t, verify())
		asked := c.plan
		for name, change := range map[string]func(){
			"memory":  func() { c.plan.resources.MemoryBytes /= 2 },
			"pids":    func() { c.plan.resources.PIDs /= 2 },
			"cpu":     func() { c.plan.resources.MilliCPUs /= 2 },
			"nonce":   func() { hello.Nonce = "another" },
			"kernel":  func() { c.plan.traits.ownKernel = !c.plan.traits.ownKernel },
			"private": func() { private = private[1:] },
			"filter":  func() { hello.Command.Seccomp = 0 },
			"caps":    func() { hello.Command.Bounding = 1 },
		} {
			change()
			if err := verify(); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
			c.plan, hello = asked, sb.Guest().Hello()
			private, err = privateNamespaces(c.process.pid)
			must(t, err)
		}
	})
}

// The state directory may be below a symlink, as if the home directory were
// one.
func TestStateBelowSymlink(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		link := filepath.Join(t.TempDir(), "link")
		must(t, os.Symlink(filepath.Dir(b.state), link))
		o := b.backend.options
		o.StateDir = filepath.Join(link, filepath.Base(b.state))
		backend, err := New(o)
		must(t, err)
		b.state, b.backend = o.StateDir, backend
		b.start(t, b.spec(t, "ses_symlink"))
	})
}

func TestRootfs(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		root := shellRoot(t)
		spec := b.spec(t, "ses_rootfs")
		spec.Image = images.Reference{Scheme: images.SchemeRootFS, Value: root}
		got := output(t, b.start(t, spec), "")
		if want := "from the directory\n<nil>\nhidden: true\nread-only: true\nworkspace: <nil>\n"; got != want {
			t.Errorf("output %q, want %q", got, want)
		}
		entries, err := os.ReadDir(root)
		must(t, err)
		if len(entries) != 4 {
			t.Errorf("the directory was written to: %v", entries)
		}
	})
}

func TestCancelledCreateLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		because := errors.New("changed my mind")
		cancelled := 0
		for step := range 6 {
			spec := b.spec(t, "ses_cancel")
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := cancelAt(ctx, spec.Dir, step, func() { cancel(because) })
			sb, err := b.backend.Create(ctx, spec)
			cancel(nil)
			stop()
			if err == nil {
				must(t, sb.Destroy(context.Background()))
			} else if cancelled++; !errors.Is(err, because) {
				t.Errorf("step %d: %v, want the cause", step, err)
			}
			b.nothingLeft(t, spec.Session)
		}
		if cancelled < 3 {
			t.Errorf("only %d of 6 starts were cancelled", cancelled)
		}
	})
}

// cancelAt calls cancel when the session's directory has reached a step. The
// result stops it.
func cancelAt(ctx context.Context, dir string, step int, cancel func()) func() {
	signs := []string{".", "container", "container/nonce", "container/config.json", "container/log.json", "container/pid"}
	sign := filepath.Join(dir, signs[step])
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(sign); err == nil {
				cancel()
			}
		}
	})
	return wait.Wait
}

// Files, even sparse ones, don't grow beyond the limit.
func TestFileSize(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		got := output(t, b.start(t, b.spec(t, "ses_filesize")), "truncate -s 60G f && echo small; trap '' XFSZ; truncate -s 70G f 2>/dev/null || echo refused; rm f")
		if got != "small\nrefused\n" {
			t.Errorf("a file of 60 and one of 70 GiB: %q", got)
		}
	})
}
