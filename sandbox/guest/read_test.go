package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/tools/workspace"
)

func viewing(o *guest.Options) { o.Config.View = true }

// TestView compares the guest's view with a Reader of the directory.
func TestView(t *testing.T) {
	guesttest.Require(t)
	dir := filepath.Join(guesttest.Workspace(t), "ws")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	worktest.Layout(t, dir)
	worktest.Control(t, dir)
	c, _ := dial(t, guesttest.Options{Workspace: dir}, viewing)
	worktest.View(t, dir, c.View())
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSearchOfLargeFiles checks that files that don't fit one answer come in
// the next ones.
func TestSearchOfLargeFiles(t *testing.T) {
	c, g := dial(t, guesttest.Options{}, viewing)
	const size = 6 << 20
	var want []string
	for i := range 5 {
		write(t, g, fmt.Sprint("f", i), strings.Repeat(fmt.Sprint(i), size), 0o644)
		want = append(want, fmt.Sprintf("f%d %d", i, size))
	}
	write(t, g, "larger", strings.Repeat("x", size+1), 0o644)
	var got []string
	_, err := c.View().Search(t.Context(), ".", workspace.SearchOptions{
		MaxFile: size,
		Examine: func(_ context.Context, name string, f workspace.File, err error) workspace.SearchResult {
			return workspace.SearchResult{Value: fmt.Sprintf("%s %d", name, bytes.Count(f.Data, []byte(name[1:])))}
		},
		Visit: func(_ string, f workspace.SearchResult) error {
			got = append(got, f.Value.(string))
			return nil
		},
	})
	if want = append(want, "larger 0"); err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q, %v", got, err)
	}
}

// TestViewAsCommand: the guest is uid 0 and must not read as that. The control
// is the same file once commands may read it.
func TestViewAsCommand(t *testing.T) {
	c, g := dial(t, guesttest.Options{}, viewing)
	write(t, g, "closed", "root's own", 0o600)
	v := c.View()
	_, err := v.ReadFile(t.Context(), "closed", 0, 0)
	if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindPermission {
		t.Errorf("error %v", err)
	}
	if err := os.Chmod(filepath.Join(g.Workspace, "closed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := v.ReadFile(t.Context(), "closed", 0, 0); err != nil || string(got.Data) != "root's own" {
		t.Errorf("control: %q %v", got.Data, err)
	}
}

// TestViewUnasked checks that a guest serves no reads unless asked, and that a
// lost view says so.
func TestViewUnasked(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	if _, err := c.View().Stat(t.Context(), "x"); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	g.Kill()
	<-c.Done()
	for _, err := range []error{
		c.View().Scope(t.Context(), "x"),
		func() error { _, err := c.View().List(t.Context(), ".", 3); return err }(),
		func() error { _, err := c.View().ReadFile(t.Context(), "x", 0, 0); return err }(),
	} {
		if !errors.Is(err, sandbox.ErrLost) {
			t.Errorf("error %v", err)
		}
	}
}

// TestViewOfLongLinks checks that a directory's text is bounded before the
// guest holds it. The control is a smaller directory.
func TestViewOfLongLinks(t *testing.T) {
	c, g := dial(t, guesttest.Options{}, viewing)
	const links, few = 10_000, 1000
	for name, n := range map[string]int{"many": links, "few": few} {
		if err := os.Mkdir(filepath.Join(g.Workspace, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := os.Symlink(strings.Repeat("x", 4000), filepath.Join(g.Workspace, name, fmt.Sprintf("%05d", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	v := c.View()
	list, err := v.List(t.Context(), "many", 1)
	if got := len(list.Entries); err != nil || !list.Truncated || got*4010 > wire.MaxReadText || got*4010 < wire.MaxReadText-4010 {
		t.Errorf("%d entries, truncated %v, %v", got, list.Truncated, err)
	}
	// The directory's text, lines of it that are sent, and as much again until
	// the collector runs.
	peak := statusField(t, g.PID, "VmHWM") << 10
	t.Logf("the guest's peak is %d MiB", peak>>20)
	if peak > 64<<20 && !guesttest.Race() {
		t.Errorf("the guest's peak is %d MiB", peak>>20)
	}
	list, err = v.List(t.Context(), "few", 1)
	if err != nil || list.Truncated || len(list.Entries) != few {
		t.Errorf("control: %d entries, truncated %v, %v", len(list.Entries), list.Truncated, err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
