package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/images"
)

func (b *builder) bindsPath(p string) bool {
	return slices.ContainsFunc(b.fs.Binds, func(have images.Bind) bool {
		return have.IsDir && (p == have.Path || isBelow(p, have.Path))
	})
}

// linksPath reports whether p is one of the skeleton's symlinks, such as /bin,
// or below one.
func (b *builder) linksPath(p string) bool {
	return slices.ContainsFunc(b.fs.Symlinks, func(l images.Symlink) bool { return p == l.Path || isBelow(p, l.Path) })
}

// pathDir is a directory on the host's PATH.
type pathDir struct {
	name string // as on PATH, clean
	end  string // without symlinks, as a path in the image
	// inside is its name in the image, or "".
	inside string
	// unsafe reports that any user could write programs there.
	unsafe bool
}

// readSearchPath returns PATH's directories, once each. Relative and missing
// ones and those in the workspace are left out.
func (b *builder) readSearchPath(list string) []pathDir {
	var dirs []pathDir
	for _, entry := range filepath.SplitList(list) {
		d := pathDir{name: filepath.Clean(entry)}
		end, err := filepath.EvalSymlinks(b.hostPath(d.name))
		if err != nil || !filepath.IsAbs(entry) || slices.ContainsFunc(dirs, func(have pathDir) bool { return have.name == d.name }) {
			continue
		}
		if b.workspace != "" && (end == b.workspace || isBelow(end, b.workspace)) {
			continue
		}
		d.end = b.imagePath(end)
		d.unsafe = writableByAll(end)
		switch {
		case d.unsafe || !b.showsPath(d.end):
		case b.bindsPath(d.name) || b.linksPath(d.name):
			d.inside = d.name
		case b.bindsPath(d.end):
			d.inside = d.end
		}
		dirs = append(dirs, d)
	}
	return dirs
}

// showsPath reports whether the image has the host's p, which must have no
// symlinks.
func (b *builder) showsPath(p string) bool {
	source := b.hostPath(p)
	return slices.ContainsFunc(b.fs.Binds, func(have images.Bind) bool { return source == have.Source || isBelow(source, have.Source) })
}

// writableByAll reports whether any user of the host could add programs to dir,
// or replace a directory above it.
func writableByAll(dir string) bool {
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil || info.Mode()&0o002 != 0 && (d == dir || info.Mode()&fs.ModeSticky == 0) {
			return true
		}
		if d == filepath.Dir(d) {
			return false
		}
	}
}

func programsIn(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if isProgram(filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

func isProgram(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// toolchainVariables tell programs their toolchain's directory. If the host
// does not set a variable, it is the directory below the home, if that exists,
// because commands have another home.
var toolchainVariables = []struct{ name, below string }{
	{"RUSTUP_HOME", ".rustup"},
	{"GOROOT", ""},
	{"JAVA_HOME", ""},
	{"MAVEN_HOME", ""},
	{"GRADLE_HOME", ""},
	{"NVM_DIR", ".nvm"},
	{"VOLTA_HOME", ".volta"},
	{"PYENV_ROOT", ".pyenv"},
	{"VIRTUAL_ENV", ""},
	{"CONDA_PREFIX", ""},
	{"RBENV_ROOT", ".rbenv"},
	{"SDKMAN_DIR", ".sdkman"},
	{"ASDF_DATA_DIR", ".asdf"},
	{"DOTNET_ROOT", ""},
}

func (b *builder) addVariables(o Options) {
	for _, v := range toolchainVariables {
		dir := o.getenv(v.name)
		if dir == "" && v.below != "" {
			dir = filepath.Join(o.home(), v.below)
		}
		end, err := filepath.EvalSymlinks(b.hostPath(dir))
		if err != nil || !filepath.IsAbs(dir) {
			continue
		}
		if dir = filepath.Clean(dir); b.bindsPath(dir) && b.showsPath(b.imagePath(end)) {
			b.fs.Config.Env = append(b.fs.Config.Env, v.name+"="+dir)
		}
	}
}

// forbiddenToolchains are directories that no toolchain may be or contain: the
// host's data and the image's own directories.
var forbiddenToolchains = []string{"/", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/usr", "/var", "/workspace", "/.caisson", "/home/agent"}

func checkToolchain(dir string, o Options) error {
	clean := filepath.Clean(dir)
	if !filepath.IsAbs(dir) || slices.Contains(forbiddenToolchains, clean) || isBelow(clean, "/workspace") || isBelow(clean, "/.caisson") ||
		isBelow(clean, "/proc") || isBelow(clean, "/sys") || isBelow(clean, "/dev") || isBelow(clean, "/tmp") || isBelow(clean, "/home/agent") {
		return fmt.Errorf("%w: invalid toolchain %q: want the absolute path of one toolchain's directory", images.ErrInvalid, dir)
	}
	if home := o.home(); home != "" && (clean == home || isBelow(home, clean)) {
		return fmt.Errorf("%w: invalid toolchain %q: it contains your home directory: want the toolchain's own directory", images.ErrInvalid, dir)
	}
	return nil
}

func (b *builder) addToolchains(o Options) error {
	for _, dir := range o.Toolchains {
		if err := checkToolchain(dir, o); err != nil {
			return err
		}
		clean := filepath.Clean(dir)
		if b.bindsPath(clean) {
			continue
		}
		source, err := filepath.EvalSymlinks(b.hostPath(clean))
		if err != nil {
			return fmt.Errorf("%w: toolchain %q: %w", images.ErrNotFound, dir, err)
		}
		if info, err := os.Stat(source); err != nil || !info.IsDir() {
			return fmt.Errorf("%w: toolchain %q is not a directory", images.ErrInvalid, dir)
		}
		b.fs.Binds = append(b.fs.Binds, images.Bind{Source: source, Path: clean, IsDir: true})
	}
	return nil
}

func (b *builder) addMasks(dirs []string) error {
	for _, dir := range dirs {
		clean := filepath.Clean(dir)
		if !filepath.IsAbs(dir) || !isCovered(b.fs.Binds, clean) {
			return fmt.Errorf("%w: invalid mask %q: want an absolute directory below /usr or a toolchain", images.ErrInvalid, dir)
		}
		if info, err := os.Stat(b.hostPath(clean)); err == nil && info.IsDir() {
			b.fs.Masks = append(b.fs.Masks, clean)
		}
	}
	return nil
}
