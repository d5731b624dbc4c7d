package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
)

// TestMountsAreRefused checks which directories can't be mounted. The control is one that can.
func TestMountsAreRefused(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"home/.config/caisson", "home/state", "home/data/sub", "home/ws/sub", "home/other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(root, "home", name) }
	if err := errors.Join(os.Symlink(at("data"), at("ws/link")), os.WriteFile(at("file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	p := Protected{Home: at(""), State: at("state"), Config: at(".config/caisson")}
	w, err := OpenWorkspace(at("ws"), p)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	data := UserMount{From: at("data"), To: "/data"}
	for name, tt := range map[string]struct {
		list []UserMount
		want string
	}{
		"fine":               {[]UserMount{data, {From: at("other"), To: "/home/agent/other", ReadOnly: true}}, ""},
		"read-only twice":    {[]UserMount{{From: at("data"), To: "/data", ReadOnly: true}, {From: at("data/sub"), To: "/sub", ReadOnly: true}}, ""},
		"missing":            {[]UserMount{{From: at("none"), To: "/data"}}, "no such file"},
		"a file":             {[]UserMount{{From: at("file"), To: "/data"}}, "is not a directory"},
		"a symlink":          {[]UserMount{{From: at("ws/link"), To: "/data"}}, "is reached through a symlink"},
		"root":               {[]UserMount{{From: "/", To: "/data", ReadOnly: true}}, "is the root of the file system"},
		"home":               {[]UserMount{{From: at(""), To: "/data", ReadOnly: true}}, "is your home directory"},
		"above the home":     {[]UserMount{{From: root, To: "/data", ReadOnly: true}}, "holds your home directory"},
		"configuration":      {[]UserMount{{From: at(".config/caisson"), To: "/data", ReadOnly: true}}, "is Caisson's configuration"},
		"above":              {[]UserMount{{From: at(".config"), To: "/data", ReadOnly: true}}, "holds Caisson's configuration"},
		"state":              {[]UserMount{{From: at("state"), To: "/data", ReadOnly: true}}, "is Caisson's state directory"},
		"proc":               {[]UserMount{{From: "/proc/self", To: "/data", ReadOnly: true}}, "/proc"},
		"sys":                {[]UserMount{{From: "/sys/kernel", To: "/data", ReadOnly: true}}, "lies in /sys, which is the kernel's"},
		"dev":                {[]UserMount{{From: "/dev", To: "/data", ReadOnly: true}}, "is /dev"},
		"run":                {[]UserMount{{From: "/run", To: "/data", ReadOnly: true}}, "is /run, by which engines"},
		"system, writable":   {[]UserMount{{From: "/usr/share", To: "/data"}}, "lies in /usr, a directory of the system"},
		"system, read-only":  {[]UserMount{{From: "/usr/share", To: "/data", ReadOnly: true}}, ""},
		"the workspace":      {[]UserMount{{From: at("ws"), To: "/data", ReadOnly: true}}, "whose protection it would evade"},
		"in the workspace":   {[]UserMount{{From: at("ws/sub"), To: "/data", ReadOnly: true}}, "whose protection it would evade"},
		"overlapping":        {[]UserMount{{From: at("data"), To: "/a", ReadOnly: true}, {From: at("data/sub"), To: "/b"}}, "shares files with"},
		"one mount point":    {[]UserMount{data, {From: at("other"), To: "/data"}}, "are both at /data"},
		"over the workspace": {[]UserMount{{From: at("data"), To: "/workspace"}}, "mounts /workspace itself"},
		"in the workspace's": {[]UserMount{{From: at("data"), To: "/workspace/x"}}, "nothing can be mounted in /workspace"},
		"over all":           {[]UserMount{{From: at("data"), To: "/"}}, "the root belongs to the image"},
		"over the home":      {[]UserMount{{From: at("data"), To: "/home"}}, "mounts /home/agent itself"},
		"in proc":            {[]UserMount{{From: at("data"), To: "/proc/x"}}, "nothing can be mounted in /proc"},
		"relative":           {[]UserMount{{From: at("data"), To: "data"}}, "must be an absolute path"},
		"not clean":          {[]UserMount{{From: at("data"), To: "/a/../workspace"}}, "must be an absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := OpenMounts(tt.list, w, "", sandbox.ModeBind, p)
			if tt.want == "" {
				if err != nil || len(list) != len(tt.list) {
					t.Fatal(list, err)
				}
				if list[0].Guarded == list[0].ReadOnly {
					t.Errorf("%+v", list[0])
				}
				if err := CloseMounts(list); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, new(*MountError)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// mount gives the session a writable directory of the user.
func (b *bench) mount(name string) string {
	b.t.Helper()
	dir := filepath.Join(filepath.Dir(b.dir), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	list, err := OpenMounts([]UserMount{{From: dir, To: "/" + name}}, b.opts.Workspace, "", sandbox.ModeBind, Protected{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = CloseMounts(list) })
	b.opts.Mounts = append(b.opts.Mounts, list...)
	return dir
}

// TestWritableMountIsGuarded checks that changes in a user's writable directory are reported with
// their path in the sandbox, that new repositories there are renamed, and that files lose other
// users' privileges. The user's repository stays as it is.
func TestWritableMountIsGuarded(t *testing.T) {
	b := newBench(t, plantTurns)
	data := b.mount("data")
	write := func(name, text string) {
		path := filepath.Join(data, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write("old/.git/config", "[core]\n")
	write(".git/config", "[core]\n")
	write("kept", "x")
	write("privileged", "x")
	if err := os.Chmod(filepath.Join(data, "privileged"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.file("Makefile", "all:\n")
		write("Makefile", "all:\n")
		write("kept", "y")
		write("sub/.git/config", evilConfig)
		write(".git/config", evilConfig)
		write("tool", "#!/bin/sh\n")
		if err := os.Chmod(filepath.Join(data, "tool"), 0o755|os.ModeSetuid); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	var changed, executed, cleared []string
	for _, c := range r.Changed {
		if strings.Contains(c.Path, ".quarantined-") {
			continue
		}
		changed = append(changed, c.Path)
	}
	for _, h := range r.HostExecuted {
		executed = append(executed, h.Path)
	}
	for _, c := range r.Cleared {
		cleared = append(cleared, c.Path)
	}
	for _, tt := range []struct {
		what      string
		want, got []string
	}{
		{"changed", []string{"/data/Makefile", "/data/kept", "/data/tool", "Makefile"}, changed},
		{"executed", []string{"/data/Makefile", "Makefile"}, executed},
		{"cleared", []string{"/data/tool"}, cleared},
		{"quarantined", []string{"/data/.git", "/data/sub/.git"}, paths(r.Quarantined)},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
	}
	if !strings.HasPrefix(r.Quarantined[1].To, "/data/sub/.git.quarantined-") {
		t.Errorf("%+v", r.Quarantined)
	}
	for name, there := range map[string]bool{"old/.git/config": true, "sub/.git": false} {
		if _, err := os.Lstat(filepath.Join(data, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if info, err := os.Stat(filepath.Join(data, "tool")); err != nil || info.Mode()&os.ModeSetuid != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if m := b.backend.Sandboxes[0].Spec.Mounts[0]; !slices.Equal(m.Repositories, []string{"old/.git"}) || !slices.Equal(m.Privileged, []string{"privileged"}) {
		t.Errorf("the mount protects %q and %q", m.Repositories, m.Privileged)
	}
	if want := fmt.Sprintf(`"mounts":[{"from":%q,"to":"/data","read_only":false}]`, data); !strings.Contains(string(records[0].Payload), want) {
		t.Errorf("%s, want %s", records[0].Payload, want)
	}
	if left, err := filepath.Glob(filepath.Join(r.Dir, "repositories*")); err != nil || len(left) > 0 {
		t.Error("left:", left, err)
	}
}

// TestChangesInMountsAreTheOwners checks that this process, although it runs as root, renames no
// repository that a command could not have renamed: it acts as the directory's owner.
func TestChangesInMountsAreTheOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	b := newBench(t, plantTurns)
	data := b.mount("data")
	foreign := filepath.Join(data, "foreign")
	if err := errors.Join(os.Chown(data, 12345, 12345), os.Mkdir(foreign, 0o755)); err != nil {
		t.Fatal(err)
	}
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		for _, name := range []string{"own/.git", "foreign/.git"} {
			if err := os.MkdirAll(filepath.Join(data, name), 0o755); err != nil {
				t.Error(err)
			}
		}
		if err := os.Chown(filepath.Join(data, "own"), 12345, 12345); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	renamed := map[string]bool{}
	for _, q := range r.Quarantined {
		renamed[q.Path] = q.To != ""
	}
	if diff := cmp.Diff(map[string]bool{"/data/own/.git": true, "/data/foreign/.git": false}, renamed); diff != "" {
		t.Errorf("renamed (-want +got):\n%s\n%+v", diff, r.Quarantined)
	}
	var st unix.Stat_t
	if err := unix.Stat(foreign, &st); err != nil || st.Uid != 0 {
		t.Error(st.Uid, err)
	}
}

// TestOverlayRefusesWritableMounts checks that a session in overlay or copy mode changes no directory
// of the user.
func TestOverlayRefusesWritableMounts(t *testing.T) {
	for _, mode := range []sandbox.WorkspaceMode{sandbox.ModeOverlay, sandbox.ModeCopy} {
		b := newBench(t, plantTurns)
		b.mount("data")
		b.opts.Mode = mode
		if _, err := Open(t.Context(), b.opts); !errors.Is(err, ErrWritableMount) {
			t.Error(mode, err)
		}
	}
}
