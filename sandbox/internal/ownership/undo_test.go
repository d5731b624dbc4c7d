package ownership

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// placeholderFixture returns a workspace with a placeholder of a dead session.
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

// TestPlaceholderThroughALink: .git swapped for a symlink while a placeholder
// is made below it must not lead out of the workspace.
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
	// Positive control: the naive way leads out.
	must(t, os.Mkdir(filepath.Join(dir, ".git/hooks"), 0o755))
	if _, err := os.Stat(filepath.Join(outside, "hooks")); err != nil {
		t.Errorf("control: the naive way did not go out: %v", err)
	}
}

// TestPlaceholderUnderAnUnreadableCleanupList checks that a placeholder stays
// while an unreadable list, or another version's, may contain it.
func TestPlaceholderUnderAnUnreadableCleanupList(t *testing.T) {
	for name, content := range map[string]string{
		"damaged":         "{",
		"another version": "",
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
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
			// Positive control: without that list it is removed.
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
