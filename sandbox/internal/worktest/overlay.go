package worktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Cell is one cell of a matrix: a sandbox on a furnished workspace.
type Cell struct {
	Sandbox sandbox.Sandbox
	// Dir is the workspace on the host, Layers its layers in overlay mode.
	Dir, Layers string
	// UID and GID own the workspace on the host.
	UID, GID int
	// Thirds reports that files of third ids exist and keep them.
	Thirds bool
	// NoSetgid reports that nothing can be made in a setgid directory of a
	// group that the user is not in.
	NoSetgid bool
	// OwnKernel reports gVisor, where the host doesn't see FIFOs that commands
	// make.
	OwnKernel bool
	// FileWhiteouts reports that the layers' file system has no devices.
	FileWhiteouts bool
	// SeesPipes reports that the guest reads for the host's view, which then has
	// such FIFOs as long as the sandbox lives.
	SeesPipes bool
}

// change is the commands' script in a furnished overlay.
const change = `set -e; umask 022; cd /workspace
	echo new >made; echo more >>keep/deep/f; rm -r gone; rm -r opaque; mkdir opaque; echo y >opaque/fresh
	mv moved elsewhere; echo two >>linked; printf 'echo new\n' >>script; ./script; printf x >>big; ln linked hard; ln -s made link2; mkfifo pipe
	chmod 600 readonly; mkdir -p set/made; echo g >set/in; touch -d @1100000000 keep/deep/f; rm fifo; mkdir fifo`

// changeThird is their script for files of third ids.
const changeThird = `cd /workspace; echo t2 >>third; cat hidden; chmod 777 hidden; true`

// Overlay makes commands change a furnished workspace, and checks what they,
// the host's view and the upper layer see of it.
func Overlay(t *testing.T, c Cell) {
	t.Helper()
	if out, exit := Shell(t, c.Sandbox, change); !exit.Status.Success() || out != "old\nnew\n" {
		t.Fatalf("%v: %q", exit.Status, out)
	}
	if c.Thirds {
		if out, _ := Shell(t, c.Sandbox, changeThird); out != "" {
			t.Errorf("another's file said %q", out)
		}
	}
	op := workspace.Op{Kind: workspace.OpWrite, Path: "by/tool", Content: []byte("tool")}
	if _, err := c.Sandbox.Apply(t.Context(), op); err != nil {
		t.Error(err)
	}
	SeesChange(t, c)
	c.checkUpper(t)
}

// SeesChange checks that commands and the host's view see Overlay's changes.
func SeesChange(t *testing.T, c Cell) {
	t.Helper()
	seen := map[string]string{
		"made": "new\n", "keep/deep/f": "kept\nmore\n", "linked": "one\ntwo\n", "hard": "one\ntwo\n", "elsewhere/sub/f": "m\n",
		"opaque/fresh": "y\n", "readonly": "ro\n", "set/in": "g\n", "by/tool": "tool", "script": "#!/bin/sh\necho old\necho new\n",
	}
	if c.Thirds {
		seen["third"] = "t\nt2\n"
	}
	v := c.Sandbox.View()
	for name, want := range seen {
		if out, exit := Shell(t, c.Sandbox, "cat /workspace/"+name); out != want {
			t.Errorf("inside, %s: %q %v", name, out, exit.Status)
		}
		for _, path := range []string{name, filepath.Join(c.Dir, name), filepath.Join(sandbox.WorkspaceDir, name)} {
			if got, err := v.ReadFile(t.Context(), path, 0, 0); err != nil || string(got.Data) != want {
				t.Errorf("view of %s: %q %v", path, got.Data, err)
			}
		}
	}
	if got, err := v.ReadFile(t.Context(), "link", 0, 0); err != nil || got.Path != "link" || len(got.Data) == 0 {
		t.Errorf("view of a link: %+v %v", got, err)
	}
	if got, err := v.ReadFile(t.Context(), "big", 64<<20, 0); err != nil || string(got.Data) != "endx" {
		t.Errorf("view of the end of a big file: %q %v", got.Data, err)
	}
	for _, name := range []string{"gone", "gone/f", "opaque/in", "moved"} {
		if _, err := v.Stat(t.Context(), name); kindOf(err) != workspace.KindNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, kind := range map[string]workspace.Kind{"outside": workspace.KindEscape, "pipe": workspace.KindNotRegular, "opaque": workspace.KindIsDir} {
		if name == "pipe" && c.OwnKernel && !c.SeesPipes {
			kind = workspace.KindNotFound
		}
		if _, err := v.ReadFile(t.Context(), name, 0, 0); kindOf(err) != kind {
			t.Errorf("view of %s: %v", name, err)
		}
	}
	SearchSeesList(t, v)
	var more []string
	if c.Thirds {
		more = append(more, "group", "hidden", "third")
	}
	if !c.OwnKernel || c.SeesPipes {
		more = append(more, "pipe")
	}
	c.checkList(t, v, more...)
}

func (c Cell) checkList(t *testing.T, v workspace.View, more ...string) {
	t.Helper()
	want := map[string]bool{}
	for _, name := range append(more, "big", "by", "elsewhere", "fifo", "hard", "keep", "link", "link2", "linked", "linked2", "made", "opaque",
		"outside", "readonly", "script", "set") {
		want[name] = true
	}
	got, err := v.List(t.Context(), ".", 1)
	if err != nil {
		t.Error(err)
	}
	for _, e := range got.Entries {
		if !want[e.Path] && e.Path != ".caisson" {
			t.Errorf("the view has %q", e.Path)
		}
		delete(want, e.Path)
	}
	if len(want) > 0 {
		t.Errorf("the view lacks %v", want)
	}
}

// checkUpper checks the owners of written files and the records of removals.
func (c Cell) checkUpper(t *testing.T) {
	t.Helper()
	upper := filepath.Join(c.Layers, "upper")
	own := [2]int{c.UID, c.GID}
	want := map[string][2]int{"made": own, "opaque/fresh": own, "elsewhere": own, "elsewhere/sub/f": own, "by/tool": own, "link2": own, "set/in": own}
	if !c.OwnKernel {
		want["pipe"] = own
	}
	if c.Thirds {
		want["third"], want["set"], want["set/in"], want["set/made"] = [2]int{ThirdUID, ThirdGID}, [2]int{c.UID, ThirdGID}, [2]int{c.UID, ThirdGID}, [2]int{c.UID, ThirdGID}
	}
	for name, ids := range want {
		Owner(t, filepath.Join(upper, name), ids[0], ids[1])
	}
	for _, name := range []string{"gone", "moved"} {
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(upper, name), &st)
		device, file := st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0, st.Size == 0 && overlayfs.IsWhiteout(unix.AT_FDCWD, filepath.Join(upper, name))
		if err != nil || device == c.FileWhiteouts || file != c.FileWhiteouts {
			t.Errorf("%s is no whiteout: %o %v", name, st.Mode, err)
		}
	}
	opaque := make([]byte, 8)
	if n, err := unix.Lgetxattr(filepath.Join(upper, "opaque"), "user.overlay.opaque", opaque); err != nil || string(opaque[:n]) != "y" {
		t.Errorf("opaque %v", err)
	}
	if info, err := os.Stat(filepath.Join(upper, "set/made")); err != nil || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("a directory in a setgid directory has mode %v: %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(upper, "keep/deep/f")); err != nil || info.ModTime().Unix() != 1100000000 {
		t.Errorf("time of change: %v %v", info, err)
	}
}

// Shell runs a script in a sandbox and returns its standard output.
func Shell(t testing.TB, s sandbox.Sandbox, script string) (string, sandbox.Exit) {
	t.Helper()
	var out, errOut bytes.Buffer
	exit, err := sandbox.Run(context.WithoutCancel(t.Context()), s, sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &errOut})
	must(t, err)
	if errOut.Len() > 0 {
		t.Logf("%s wrote: %s", firstLine(script), &errOut)
	}
	return out.String(), exit
}

func firstLine(text string) string {
	line, _, more := strings.Cut(text, "\n")
	if more {
		return fmt.Sprintf("%q…", line)
	}
	return fmt.Sprintf("%q", line)
}
