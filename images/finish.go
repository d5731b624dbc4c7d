package images

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// maxVolumes bounds the mounts that an image can ask for.
const maxVolumes = 32

// maxAccounts is the size of a passwd or group file that is kept.
const maxAccounts = 1 << 20

// finished is what a tree is, besides its files.
type finished struct {
	Volumes  []string `json:"volumes,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// finish makes an unpacked tree one that commands can run on: their account,
// the files that an engine would put there, and a folder for each VOLUME,
// since nothing can be made in a root that is mounted read-only. It fails with
// [ErrInvalid] for a tree without a shell, which every command line needs.
func finish(dir string, accounts []Account, volumes []string, limits Limits) (finished, error) {
	limits.Entries = 1000 // its own, whatever the layers have used up
	t, err := openTree(dir, limits)
	if err != nil {
		return finished{}, err
	}
	defer t.close()
	if !t.runs("/bin/sh") {
		return finished{}, fmt.Errorf("%w: it has no /bin/sh, which every command needs: take an image with a shell", ErrInvalid)
	}
	var done finished
	for _, f := range []struct {
		name string
		make func(has []byte) []byte
	}{
		{"etc/passwd", func(has []byte) []byte { return passwd(accounts, has) }},
		{"etc/group", func(has []byte) []byte { return group(accounts, has) }},
		{"etc/hosts", func([]byte) []byte { return []byte("127.0.0.1 localhost caisson\n::1 localhost\n") }},
		{"etc/hostname", func([]byte) []byte { return []byte("caisson\n") }},
	} {
		if err := t.rewrite(f.name, f.make); err != nil {
			done.warn("%s could not be made: %v", f.name, err)
		}
	}
	if err := t.temporary(); err != nil {
		done.warn("/var/tmp could not be made: %v", err)
	}
	slices.Sort(volumes)
	for i, v := range volumes {
		if i == maxVolumes {
			done.warn("of %d volumes the first %d were kept", len(volumes), maxVolumes)
			break
		}
		real, err := t.volume(v)
		if err != nil {
			done.warn("volume %.200q was left out: %v", v, err)
		} else if real != "" && !slices.Contains(done.Volumes, real) {
			done.Volumes = append(done.Volumes, real)
		}
	}
	slices.Sort(done.Volumes)
	return done, nil
}

func (f *finished) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}

// rewrite makes a file anew out of what it holds. What is no regular file, or
// too long, holds nothing.
func (t *tree) rewrite(name string, content func(has []byte) []byte) error {
	s, err := t.find(strings.Split(name, "/"), true, nil)
	if err != nil {
		return err
	}
	var has []byte
	if info, err := s.dir.Lstat(s.base); err == nil && info.Mode().IsRegular() && info.Size() <= maxAccounts {
		if has, err = s.dir.ReadFile(s.base); err != nil {
			return err
		}
	}
	f, err := t.create(s)
	if err != nil {
		return err
	}
	_, err = f.Write(content(has))
	return errors.Join(err, f.Chmod(0o644), f.Close())
}

// temporary makes /var/tmp a link to /tmp if nothing is in it: the folder itself
// would be read-only.
func (t *tree) temporary() error {
	s, err := t.find([]string{"var", "tmp"}, true, nil)
	if err != nil {
		return err
	}
	if info, err := s.dir.Lstat(s.base); err == nil && info.IsDir() {
		d, err := s.dir.Open(s.base)
		if err != nil {
			return err
		}
		_, err = d.ReadDir(1)
		if err = errors.Join(d.Close(), err); !errors.Is(err, io.EOF) {
			return err // nil: there is something in it
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.clear(s); err != nil {
		return err
	}
	return s.dir.Symlink("/tmp", s.base)
}

// volume makes the folder of a VOLUME and gives its real path. It is empty
// for one in what the sandbox mounts anyway.
func (t *tree) volume(name string) (string, error) {
	parts, reason := splitName(name, t.limits)
	if reason != "" || len(parts) == 0 || !path.IsAbs(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", refusal("no folder of the image")
	}
	if made[parts[0]] {
		return "", nil
	}
	// What find doesn't follow is the last name, so there is one more.
	s, err := t.find(append(parts, "."), true, nil)
	if err != nil {
		return "", err
	}
	top, _, _ := strings.Cut(s.path, "/")
	switch {
	case made[top]:
		return "", nil
	case s.path == "" || s.path == "etc" || s.path == "usr" || s.path == "var":
		return "", refusal("it would hide the image's own files")
	}
	return "/" + s.path, nil
}

// runs says whether a path, links followed, is a program.
func (t *tree) runs(name string) bool {
	parts := strings.Split(strings.Trim(name, "/"), "/")
	for range maxFollowed {
		s, err := t.find(parts, false, nil)
		if err != nil {
			return false
		}
		info, err := s.dir.Lstat(s.base)
		switch {
		case err != nil:
			return false
		case info.Mode()&fs.ModeSymlink == 0:
			return info.Mode().IsRegular() && info.Mode()&0o111 != 0
		}
		target, err := s.dir.Readlink(s.base)
		if err != nil || target == "" {
			return false
		}
		if !path.IsAbs(target) {
			target = s.path + "/" + target
		}
		parts = strings.Split(strings.Trim(target, "/"), "/")
	}
	return false
}
