package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// useCaches gives a session caches. Its command plant writes a file with the given text, and a symlink
// to outside, to each cache that the sandbox has.
func (b *bench) useCaches(use caches.Use, outside, text string, names ...string) {
	b.t.Helper()
	o := CacheOptions{Store: caches.NewStore(filepath.Join(filepath.Dir(b.dir), "state")), Use: use}
	for _, name := range names {
		c, err := caches.Parse(name)
		if err != nil {
			b.t.Fatal(err)
		}
		o.Caches = append(o.Caches, c)
	}
	b.opts.Caches = o
	b.backend.Scripts["plant"] = func(_ context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		for _, m := range box.Spec.Mounts {
			dir := m.Path
			if m.Layers != "" {
				dir = filepath.Join(m.Layers, "upper")
			}
			if m.Type == sandbox.MountScratch {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, "written"), []byte(text), 0o644); err != nil {
				b.t.Error(err)
			}
			_ = os.Symlink(outside, filepath.Join(dir, "link"))
		}
		return sandbox.ExitStatus{}
	}
}

// cached returns the content of plant's file in the workspace's first cache.
func (b *bench) cached() string {
	b.t.Helper()
	l, err := b.opts.Caches.Store.Open(b.dir, cacheOwner(b.opts.Workspace), b.opts.Caches.Caches[0].Targets)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	text, err := os.ReadFile(filepath.Join(l.Dirs[0].Path, "written"))
	if err != nil {
		return ""
	}
	return string(text)
}

// TestSessionUsesCaches checks for each use and mode what the sandbox has of caches, and what is kept
// of what commands write.
func TestSessionUsesCaches(t *testing.T) {
	for _, tt := range []struct {
		name    string
		use     caches.Use
		overlay bool
		apply   bool
		changes bool // of the workspace
		want    string
	}{
		{name: "bind", want: "new"},
		{name: "bind frozen", use: caches.Frozen, want: "old"},
		{name: "bind none", use: caches.None, want: "old"},
		{name: "overlay kept", overlay: true, changes: true, want: "old"},
		{name: "overlay applied", overlay: true, apply: true, changes: true, want: "new"},
		{name: "overlay applied without a change", overlay: true, apply: true, want: "new"},
		{name: "overlay without a change", overlay: true, want: "old"},
		{name: "overlay frozen applied", use: caches.Frozen, overlay: true, apply: true, changes: true, want: "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, "  - calls: [{tool: shell, input: {command: plant}}]\n  - text: done\n")
			outside := t.TempDir()
			b.useCaches(caches.Writable, outside, "old", "npm", "~/.x")
			b.run(t.Context()) // a session in bind mode
			if got := b.cached(); got != "old" {
				t.Fatalf("the first session left %q", got)
			}
			again := newBench(t, "  - calls: [{tool: shell, input: {command: plant}}]\n  - text: done\n")
			again.dir, again.opts.Workspace = b.dir, b.opts.Workspace
			again.useCaches(tt.use, outside, "new", "npm", "~/.x")
			again.opts.Caches.Store = b.opts.Caches.Store
			plant := again.backend.Scripts["plant"]
			again.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
				if tt.changes {
					if err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/changed", box.Dir.Fd()), nil, 0o644); err != nil {
						t.Error(err)
					}
				}
				return plant(ctx, box, cmd)
			}
			if tt.overlay {
				again.opts.Mode = sandbox.ModeOverlay
			}
			again.opts.Apply = tt.apply
			r, records := again.run(t.Context())
			spec := again.backend.Sandboxes[0].Spec
			var targets []string
			for _, m := range spec.Mounts {
				targets = append(targets, m.Target)
				if direct := !tt.overlay && tt.use == ""; direct != (m.Layers == "") || m.ReadOnly || m.Guarded {
					t.Errorf("%+v", m)
				}
			}
			var want []string
			if tt.use != caches.None {
				want = []string{"/home/agent/.npm", "/home/agent/.x"}
			}
			if diff := cmp.Diff(want, targets); diff != "" {
				t.Error(diff)
			}
			if has := strings.Contains(strings.Join(spec.Env, " "), "npm_config_cache=/home/agent/.npm"); has != (tt.use != caches.None) {
				t.Error(spec.Env)
			}
			if !strings.Contains(string(records[0].Payload), `"caches":{"names":["npm","~/.x"]`) {
				t.Error(string(records[0].Payload))
			}
			if got := again.cached(); got != tt.want {
				t.Errorf("the cache has %q, want %q", got, tt.want)
			}
			if inside, err := os.ReadDir(outside); err != nil || len(inside) > 0 {
				t.Error("a symlink was followed:", inside, err)
			}
			kept := tt.overlay && tt.changes && !tt.apply
			if _, err := os.Stat(filepath.Join(r.Dir, sessiondir.CachesDir)); (err == nil) != kept {
				t.Errorf("the layers of caches: %v", err)
			}
			if !kept {
				return
			}
			if err := sessiondir.MergeCaches(t.Context(), r.Dir); err != nil || again.cached() != "new" {
				t.Errorf("merged later: %q, %v", again.cached(), err)
			}
			if _, err := os.Stat(filepath.Join(r.Dir, sessiondir.CachesDir)); err == nil {
				t.Error("the layers are left")
			}
		})
	}
}

// TestCachesWithoutCopyOnWrite checks that a backend which can't mount a cache copy-on-write has empty
// directories instead, with a warning, and that a failing overlay of the workspace is still an
// error.
func TestCachesWithoutCopyOnWrite(t *testing.T) {
	for _, all := range []bool{false, true} {
		b := newBench(t, "  - calls: [{tool: shell, input: {command: plant}}]\n  - text: done\n")
		b.useCaches(caches.Frozen, t.TempDir(), "new", "npm")
		b.opts.Backend = refusingLayers{b.backend, all}
		r, records := b.run(t.Context())
		warned := false
		for _, rec := range records {
			warned = warned || strings.Contains(string(rec.Payload), "the caches are empty in this session")
		}
		if warned == all || (r.ExitStatus == 0) == all {
			t.Errorf("all %v: warned %v, ended %d", all, warned, r.ExitStatus)
		}
		if !all && b.backend.Sandboxes[0].Spec.Mounts[0].Type != sandbox.MountScratch {
			t.Errorf("%+v", b.backend.Sandboxes[0].Spec.Mounts)
		}
	}
}

// refusingLayers is a backend without copy-on-write caches, or one that makes nothing.
type refusingLayers struct {
	sandbox.Creator
	all bool
}

func (f refusingLayers) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if f.all || spec.Mounts[0].Layers != "" {
		return nil, fmt.Errorf("%w: no overlay", sandbox.ErrUnsupported)
	}
	return f.Creator.Create(ctx, spec)
}
