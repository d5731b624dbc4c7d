package ownership

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// A directory that holds a mount is not removed: the mount may be the user's
// workspace.
func TestRemoveTreeEntersNoMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	base := t.TempDir()
	precious := filepath.Join(base, "precious")
	must(t, os.MkdirAll(precious, 0o755))
	must(t, os.WriteFile(filepath.Join(precious, "work"), []byte("x"), 0o644))
	point := filepath.Join(base, "session/mounts/1")
	must(t, os.MkdirAll(point, 0o755))
	must(t, unix.Mount(precious, point, "", unix.MS_BIND, ""))
	defer unix.Unmount(point, unix.MNT_DETACH)
	// Positive control: the mount shows the file where a removal would find it.
	if _, err := os.Stat(filepath.Join(point, "work")); err != nil {
		t.Fatalf("control: %v", err)
	}
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	if err := workspace.RemoveTreeAt(dir, "session"); err == nil {
		t.Error("the tree was removed with a mount in it")
	}
	if _, err := os.Stat(filepath.Join(precious, "work")); err != nil {
		t.Fatalf("the mounted directory lost its file: %v", err)
	}
	must(t, Unmount(dir, "session/mounts/1"))
	must(t, Unmount(dir, "session/mounts/1"))
	must(t, workspace.RemoveTreeAt(dir, "session"))
	if _, err := os.Stat(filepath.Join(precious, "work")); err != nil {
		t.Errorf("the mounted directory lost its file: %v", err)
	}
}

func TestRemoveTreeFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "directory"), 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("x"), 0o644))
	must(t, os.MkdirAll(filepath.Join(base, "state/session"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(base, "state/session/link")))
	must(t, os.Symlink(outside, filepath.Join(base, "state/shortcut")))
	dir, err := os.Open(filepath.Join(base, "state"))
	must(t, err)
	defer dir.Close()
	if err := workspace.RemoveTreeAt(dir, "shortcut/directory"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
	if err := workspace.RemoveTreeAt(dir, "../outside"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("out of the directory: %v", err)
	}
	must(t, workspace.RemoveTreeAt(dir, "session"))
	for _, name := range []string{"canary", "directory"} {
		if _, err := os.Stat(filepath.Join(outside, name)); err != nil {
			t.Errorf("outside: %v", err)
		}
	}
}

// Commands may have made the tree: deeper than any path can be, with more
// entries than are read at once, with directories that their owner can't enter,
// and with names that the removal uses itself.
func TestRemoveTreeOfCommands(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "directory"), 0o755))
	tree := filepath.Join(base, "tree")
	for _, name := range []string{".removed-1", "closed/inside", "many"} {
		must(t, os.MkdirAll(filepath.Join(tree, name), 0o755))
	}
	for i := range 3 * 1024 {
		must(t, os.WriteFile(filepath.Join(tree, "many", strconv.Itoa(i)), nil, 0o600))
	}
	must(t, os.Link(filepath.Join(tree, "many/0"), filepath.Join(tree, "closed/link")))
	must(t, os.Chmod(filepath.Join(tree, "closed"), 0))
	at, err := unix.Open(tree, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 100)
	for range 5 * 64 { // 32 kB of path
		must(t, unix.Mkdirat(at, name, 0o755))
		must(t, unix.Symlinkat(outside, at, "link"))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	must(t, workspace.RemoveTreeAt(dir, "tree"))
	if _, err := os.Lstat(tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "directory")); err != nil {
		t.Errorf("outside: %v", err)
	}
}

// workspaceFixture is a workspace with a placeholder that a dead session noted.
func placeholderFixture(t *testing.T, name string) (string, Placeholder) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	must(t, os.Mkdir(dir, 0o755))
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	return dir, Placeholder{
		Workspace: dir, WorkspaceDev: st.Dev, WorkspaceIno: st.Ino, Name: name, UID: os.Geteuid(), GID: os.Getegid(),
	}
}

func TestPlaceholders(t *testing.T) {
	for _, tt := range []struct {
		name  string
		place string
		spoil func(t *testing.T, dir string)
		gone  bool
		err   error
	}{
		{name: "unchanged directory", place: ".git", gone: true},
		{name: "unchanged file", place: ".git/commondir", gone: true},
		{name: "directory with content", place: ".git", err: ErrChanged, spoil: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, ".git/x"), nil, 0o644))
		}},
		{name: "file with another content", place: ".git/commondir", err: ErrChanged, spoil: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, ".git/commondir"), []byte("x\n"), 0o644))
		}},
		{name: "another directory of that name", place: ".git", err: ErrChanged, spoil: func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "old")))
			must(t, os.Mkdir(filepath.Join(dir, ".git"), 0o755))
		}},
		{name: "a link of that name", place: ".git", err: ErrChanged, spoil: func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "old")))
			must(t, os.Symlink("old", filepath.Join(dir, ".git")))
		}},
		{name: "workspace replaced", place: ".git", err: os.ErrNotExist, spoil: func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.MkdirAll(filepath.Join(dir, ".git"), 0o755))
		}},
		{name: "workspace behind a link", place: ".git", err: os.ErrNotExist, spoil: func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.Symlink(dir+".old", dir))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, p := placeholderFixture(t, tt.place)
			if filepath.Dir(tt.place) != "." {
				must(t, os.Mkdir(filepath.Join(dir, filepath.Dir(tt.place)), 0o755))
			}
			held, err := os.Open(dir)
			must(t, err)
			defer held.Close()
			p, err = p.Make(held)
			must(t, err)
			if _, err := p.Make(held); !errors.Is(err, os.ErrExist) {
				t.Errorf("made twice: %v", err)
			}
			if tt.spoil != nil {
				tt.spoil(t, dir)
			}
			if err := p.removeByPath(); !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			_, err = os.Lstat(filepath.Join(dir, tt.place))
			if gone := errors.Is(err, os.ErrNotExist); gone != tt.gone {
				t.Errorf("gone is %v, want %v", gone, tt.gone)
			}
		})
	}
}

// .git swapped for a symlink while a placeholder is made below it must not lead
// out of the workspace.
func TestPlaceholderThroughALink(t *testing.T) {
	dir, p := placeholderFixture(t, ".git/hooks")
	outside := t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(dir, ".git")))
	held, err := os.Open(dir)
	must(t, err)
	defer held.Close()
	if _, err := p.Make(held); !errors.Is(err, unix.ELOOP) {
		t.Errorf("error %v, want ELOOP", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "hooks")); err == nil {
		t.Error("made outside")
	}
	// Positive control: the naive way goes out.
	must(t, os.Mkdir(filepath.Join(dir, ".git/hooks"), 0o755))
	if _, err := os.Stat(filepath.Join(outside, "hooks")); err != nil {
		t.Errorf("control: the naive way did not go out: %v", err)
	}
}

// A cleanup list that can't be read, or is another version's, may note the
// placeholder: it stays.
func TestPlaceholderUnderAnUnreadableCleanupList(t *testing.T) {
	for name, content := range map[string]string{
		"damaged":         "{",
		"another version": "",
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := state(t)
			workspace, p := placeholderFixture(t, ".git")
			held, err := os.Open(workspace)
			must(t, err)
			defer held.Close()
			j := openList(t, dir, self)
			id, err := j.Reserve(t.Context(), held, p)
			must(t, err)
			if content == "" {
				made, _ := j.findPlaceholder(id)
				data, err := json.Marshal(map[string]any{"version": 9, "new": true, "entries": []any{map[string]any{"id": 1, "placeholder": made}}})
				must(t, err)
				content = string(data)
			}
			other := filepath.Join(dir, listDir, "ses_other.json")
			must(t, os.WriteFile(other, []byte(content), 0o600))
			must(t, j.Release(t.Context(), held, id))
			if _, err := os.Lstat(filepath.Join(workspace, ".git")); err != nil {
				t.Errorf("the placeholder was removed: %v", err)
			}
			// Positive control: without that cleanup list it goes.
			must(t, os.Remove(other))
			must(t, os.Remove(filepath.Join(workspace, ".git")))
			id, err = j.Reserve(t.Context(), held, p)
			must(t, err)
			must(t, j.Release(t.Context(), held, id))
			if _, err := os.Lstat(filepath.Join(workspace, ".git")); err == nil {
				t.Error("control: the placeholder is left")
			}
		})
	}
}
