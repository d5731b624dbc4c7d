package layer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
)

// maxVolumes bounds the mounts that an image can request.
const maxVolumes = 32

// FinishResult describes a finished tree.
type FinishResult struct {
	Volumes  []string `json:"volumes,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// FinishOptions are the parts of a root filesystem that its layers don't
// determine.
type FinishOptions struct {
	Files []FileRewrite
	// Volumes are the directories declared as VOLUME.
	Volumes []string
	// WorkingDir is the image's WORKDIR, which is made if it is missing and
	// valid.
	WorkingDir string
	// IsReserved reports whether the sandbox makes the top-level directory
	// name, so that a volume in it needs no directory in the image.
	IsReserved func(name string) bool
	Limits     Limits
}

// FileRewrite replaces a file by what Rewrite returns for its old content,
// which is nil if the file is missing, not regular or too long.
type FileRewrite struct {
	Path    string // below the root, without a leading slash
	Rewrite func(old []byte) []byte
}

// Finish prepares the unpacked tree in dir for commands. It writes o.Files, and
// creates a directory for each VOLUME, since nothing can be created in a
// read-only root. It fails with [images.ErrInvalid] for a tree without a shell,
// which every command line needs.
func Finish(dir string, o FinishOptions) (FinishResult, error) {
	limits, volumes := o.Limits, slices.Sorted(slices.Values(o.Volumes))
	limits.Entries = 1000 // independent of the layers' entries
	t, err := openTree(dir, limits)
	if err != nil {
		return FinishResult{}, err
	}
	defer t.closeDirs()
	if !t.isProgram("/bin/sh") {
		return FinishResult{}, fmt.Errorf("%w: no /bin/sh, which every command needs: use an image with a shell", images.ErrInvalid)
	}
	var done FinishResult
	for _, f := range o.Files {
		if err := t.rewriteFile(f.Path, f.Rewrite); err != nil {
			done.addWarning("%s could not be made: %v", f.Path, err)
		}
	}
	if err := t.linkVarTmp(); err != nil {
		done.addWarning("/var/tmp could not be made: %v", err)
	}
	for i, v := range volumes {
		if i == maxVolumes {
			done.addWarning("only the first %[2]d of %[1]d volumes were kept", len(volumes), maxVolumes)
			break
		}
		real, err := t.makeVolume(v, o.IsReserved)
		if err != nil {
			done.addWarning("volume %.200q was left out: %v", v, err)
		} else if real != "" && !slices.Contains(done.Volumes, real) {
			done.Volumes = append(done.Volumes, real)
		}
	}
	slices.Sort(done.Volumes)
	if parts, reason := splitName(o.WorkingDir, t.limits); reason == "" && len(parts) > 0 && path.IsAbs(o.WorkingDir) && !o.IsReserved(parts[0]) {
		if _, err := t.resolvePath(append(parts, "."), true, nil); err != nil {
			done.addWarning("the WORKDIR %.200q could not be made: %v", o.WorkingDir, err)
		}
	}
	return done, nil
}

func (f *FinishResult) addWarning(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}

func (t *tree) rewriteFile(name string, content func(has []byte) []byte) error {
	s, err := t.resolvePath(strings.Split(name, "/"), true, nil)
	if err != nil {
		return err
	}
	var has []byte
	if info, err := s.dir.Lstat(s.base); err == nil && info.Mode().IsRegular() && info.Size() <= images.MaxAccountFile {
		if has, err = s.dir.ReadFile(s.base); err != nil {
			return err
		}
	}
	f, err := t.createFile(s)
	if err != nil {
		return err
	}
	_, err = f.Write(content(has))
	return errors.Join(err, f.Chmod(0o644), f.Close())
}

// linkVarTmp makes /var/tmp a symlink to /tmp if it is missing or empty,
// because the directory would be read-only.
func (t *tree) linkVarTmp() error {
	s, err := t.resolvePath([]string{"var", "tmp"}, true, nil)
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
			return err // nil if it has entries
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.removeEntry(s); err != nil {
		return err
	}
	return s.dir.Symlink("/tmp", s.base)
}

// makeVolume creates a VOLUME's directory and returns its real path, or "" if
// the sandbox mounts over it anyway.
func (t *tree) makeVolume(name string, isReserved func(top string) bool) (string, error) {
	parts, reason := splitName(name, t.limits)
	if reason != "" || len(parts) == 0 || !path.IsAbs(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", refusal("not a directory of the image")
	}
	if isReserved(parts[0]) {
		return "", nil
	}
	// resolvePath doesn't follow the last name, so add one.
	s, err := t.resolvePath(append(parts, "."), true, nil)
	if err != nil {
		return "", err
	}
	top, _, _ := strings.Cut(s.dirPath, "/")
	switch {
	case isReserved(top):
		return "", nil
	case s.dirPath == "" || s.dirPath == "etc" || s.dirPath == "usr" || s.dirPath == "var":
		return "", refusal("it would hide the image's own files")
	}
	return "/" + s.dirPath, nil
}

// isProgram reports whether name, with symlinks followed, is an executable
// file.
func (t *tree) isProgram(name string) bool {
	parts := strings.Split(strings.Trim(name, "/"), "/")
	for range maxFollowed {
		s, err := t.resolvePath(parts, false, nil)
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
			target = s.dirPath + "/" + target
		}
		parts = strings.Split(strings.Trim(target, "/"), "/")
	}
	return false
}
