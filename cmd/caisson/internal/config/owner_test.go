package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhoseConfigurationCounts: a configuration names programs that Caisson runs, so
// one that another user may have written is refused, whatever path leads to it. The
// control is the same file in order.
func TestWhoseConfigurationCounts(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(dir, path string) error
		refused string
	}{
		"in order":         {func(string, string) error { return nil }, ""},
		"group can write":  {func(_, path string) error { return os.Chmod(path, 0o664) }, "others can write it"},
		"others can write": {func(_, path string) error { return os.Chmod(path, 0o646) }, "others can write it"},
		"directory":        {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "others can write it"},
		"directory above":  {func(dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o770|os.ModeSetgid) }, "others can write it"},
		"sticky directory": {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, ""},
		"another's":        {func(_, path string) error { return os.Chown(path, os.Getuid()+4242, -1) }, "it belongs to uid"},
		"another's folder": {func(dir, _ string) error { return os.Chown(dir, os.Getuid()+4242, -1) }, "it belongs to uid"},
		"behind a symlink": {func(dir, path string) error {
			open := filepath.Join(filepath.Dir(dir), "open")
			err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Rename(path, filepath.Join(open, "real")))
			return errors.Join(err, os.Symlink(filepath.Join(open, "real"), path))
		}, "others can write it"},
		"symlink in order": {func(dir, path string) error {
			return errors.Join(os.Rename(path, filepath.Join(dir, "real")), os.Symlink("real", path))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			path := filepath.Join(dir, "config.yaml")
			err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte("policy: {preset: ci}\n"), 0o644))
			if err := errors.Join(err, c.prepare(dir, path)); err != nil {
				if os.Getuid() != 0 {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			_, err = Load(Options{Path: path})
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%v, want %q", err, c.refused)
			}
		})
	}
}

// TestGroupOfAUser: a group with its user's number is private. Any other group, also
// root's, may have members.
func TestGroupOfAUser(t *testing.T) {
	for ids, want := range map[[2]int]bool{{1000, 1000}: true, {100, 1000}: false, {0, 1000}: false, {0, 0}: false} {
		if got := ownGroup(ids[0], ids[1]); got != want {
			t.Errorf("group %d of user %d: %v", ids[0], ids[1], got)
		}
	}
}
