package guest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestApply(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	large := bytes.Repeat([]byte("0123456789abcdef"), workspace.MaxWriteBytes/16)
	for name, target := range map[string]string{"out": "/etc", "link": "d/f"} {
		if err := os.Symlink(target, filepath.Join(g.Workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, g, "roots", "root's own\n", 0o644) // in a directory of the commands' user
	for _, tt := range []struct {
		name string
		op   workspace.Op
		want workspace.Change
		kind workspace.Kind
	}{
		{name: "write", op: workspace.Op{Kind: workspace.OpWrite, Path: "d/f", Content: []byte("one\n")}, want: workspace.Change{Kind: workspace.OpWrite, Path: "d/f", Created: true, Bytes: 4}},
		{
			name: "patch by the host's path",
			op:   workspace.Op{Kind: workspace.OpPatch, Path: filepath.Join(g.Workspace, "d/f"), Old: "one", New: "two"},
			want: workspace.Change{Kind: workspace.OpPatch, Path: "d/f", Bytes: 4, Replacements: 1, Before: []byte("one\n"), HasBefore: true},
		},
		{name: "largest write", op: workspace.Op{Kind: workspace.OpWrite, Path: "/workspace/large", Content: large}, want: workspace.Change{Kind: workspace.OpWrite, Path: "large", Created: true, Bytes: int64(len(large))}},
		{name: "rename", op: workspace.Op{Kind: workspace.OpRename, Path: "large", To: "d/large"}, want: workspace.Change{Kind: workspace.OpRename, Path: "large", To: "d/large", Bytes: int64(len(large))}},
		{name: "rename by names that are not UTF-8", op: workspace.Op{Kind: workspace.OpRename, Path: "d/large", To: "d\xff/l\xfe"}, want: workspace.Change{Kind: workspace.OpRename, Path: "d/large", To: "d\xff/l\xfe", Bytes: int64(len(large))}},
		{name: "a name that is not UTF-8", op: workspace.Op{Kind: workspace.OpWrite, Path: "d\xff/l\xfe", Content: []byte("x")}, want: workspace.Change{Kind: workspace.OpWrite, Path: "d\xff/l\xfe", Bytes: 1}},
		{name: "no match", op: workspace.Op{Kind: workspace.OpPatch, Path: "d/f", Old: "one", New: "x"}, kind: workspace.KindNoMatch},
		{name: "a symlink, whose target is another file than was asked for", op: workspace.Op{Kind: workspace.OpWrite, Path: "link", Content: []byte("x")}, kind: workspace.KindNotRegular},
		{name: "escape", op: workspace.Op{Kind: workspace.OpWrite, Path: "../f", Content: []byte("x")}, kind: workspace.KindEscape},
		{name: "escape by link", op: workspace.Op{Kind: workspace.OpWrite, Path: "out/f", Content: []byte("x")}, kind: workspace.KindEscape},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := c.Apply(t.Context(), tt.op)
			var e *workspace.Error
			if tt.kind != "" {
				if !errors.As(err, &e) || e.Kind != tt.kind {
					t.Errorf("error is %v, want kind %s", err, tt.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("change (-want +got):\n%s", diff)
			}
		})
	}
	info, err := os.Stat(filepath.Join(g.Workspace, "d/f"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != sandbox.CommandUID || st.Gid != sandbox.CommandGID || info.Mode() != 0o644 {
		t.Errorf("the file belongs to %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
}

// TestApplyAsCommand: the guest is uid 0 and must not use that. The control is
// the same directory once it is the commands'.
func TestApplyAsCommand(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	closed := filepath.Join(g.Workspace, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	op := workspace.Op{Kind: workspace.OpWrite, Path: "closed/f", Content: []byte("x")}
	var e *workspace.Error
	if _, err := c.Apply(t.Context(), op); !errors.As(err, &e) || e.Kind != workspace.KindPermission {
		t.Errorf("into root's directory: %v", err)
	}
	if err := os.Chown(closed, sandbox.CommandUID, sandbox.CommandGID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(t.Context(), op); err != nil {
		t.Errorf("into the commands' directory: %v", err)
	}
}

// TestApplyCancelled checks that the cause is returned, and the connection
// stays.
func TestApplyCancelled(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	sh(t, c, "mkdir many && cd many && i=0; while [ $i -lt 3000 ]; do : >$i; i=$((i+1)); done")
	cause := errors.New("changed my mind")
	for i := range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for range i * 2000 {
				_ = ctx.Err()
			}
			cancel(cause)
		}()
		done, err := c.Apply(ctx, workspace.Op{Kind: workspace.OpDelete, Path: "many", Recursive: true})
		var e *workspace.Error
		if err != nil && !errors.Is(err, cause) && !(errors.As(err, &e) && e.Kind == workspace.KindNotFound) {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	if r := sh(t, c, "echo on"); r.stdout != "on\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestGuestStaysClosed checks that after changes and commands the guest still
// can't be traced by commands, and has no more descriptors than before.
func TestGuestStaysClosed(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	count := func() int {
		entries, err := os.ReadDir("/proc/" + strconv.Itoa(g.PID) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() {
		for range 20 {
			start(t.Context(), t, c, sandbox.Command{Argv: []string{"cat"}, Stdin: strings.NewReader("x")})()
			start(t.Context(), t, c, sandbox.Command{Argv: []string{"none"}})()
			if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	round()
	before := count()
	round()
	if after := count(); after > before {
		t.Errorf("the guest had %d descriptors and has %d", before, after)
	}
	r := sh(t, c, "for f in environ mem maps fd/0 root/etc cwd/.; do cat /proc/1/$f 2>&1 >/dev/null | grep -q denied || echo $f; done")
	if r.stdout != "" {
		t.Errorf("a command can look at the guest's %s", r.stdout)
	}
}
