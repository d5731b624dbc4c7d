package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Absent describes programs on the host's PATH that the image lacks.
type Absent struct {
	// Dir is a directory on PATH, Programs are names in it, sorted.
	Dir      string
	Programs []string
	// Toolchains are directories that would add the programs to the image (see
	// [Options]), or nil if none can.
	Toolchains []string
	// Unsafe reports that any user could put programs into Dir.
	Unsafe bool
}

func (a Absent) String() string {
	shown := strings.Join(a.Programs[:min(len(a.Programs), 5)], ", ")
	if len(a.Programs) > 5 {
		shown += fmt.Sprintf(" and %d more", len(a.Programs)-5)
	}
	if a.Unsafe {
		return fmt.Sprintf("%s is on PATH and left out because any user may write it, so that the host image lacks: %s", a.Dir, shown)
	}
	return fmt.Sprintf("%s is on PATH but not in the host image, which therefore lacks: %s", a.Dir, shown)
}

// FindAbsent returns the programs on PATH that the image lacks, in PATH's
// order. A program that the image has in another directory is not absent.
func FindAbsent(ctx context.Context, o Options) ([]Absent, error) {
	b, err := newBuilder(ctx, &o)
	if err != nil {
		return nil, err
	}
	dirs := b.readSearchPath(o.Path)
	inside := b.findProgramDirs(dirs)
	var out []Absent
	for _, d := range dirs {
		if d.inside != "" && !strings.HasPrefix(d.end, "/usr/local/") && isBelow(d.end, "/usr") {
			continue // the many programs of the distribution need nothing elsewhere
		}
		a := Absent{Dir: d.name, Unsafe: d.unsafe}
		for _, name := range programsIn(b.hostPath(d.name)) {
			if d.inside != "" && b.hasProgram(d.name, name) || slices.ContainsFunc(inside, func(dir string) bool { return b.hasProgram(dir, name) }) {
				continue
			}
			a.Programs = append(a.Programs, name)
			if !d.unsafe {
				a.Toolchains = b.addToolchainOf(a.Toolchains, d, name, o)
			}
		}
		if len(a.Programs) > 0 {
			out = append(out, a)
		}
	}
	return out, context.Cause(ctx)
}

// FindPrograms maps program names to where commands in the image find them.
// Programs they don't find are left out.
func FindPrograms(ctx context.Context, o Options, names []string) (map[string]string, error) {
	b, err := newBuilder(ctx, &o)
	if err != nil {
		return nil, err
	}
	inside := b.findProgramDirs(b.readSearchPath(o.Path))
	out := map[string]string{}
	for _, name := range names {
		if i := slices.IndexFunc(inside, func(dir string) bool { return b.hasProgram(dir, name) }); i >= 0 {
			out[name] = filepath.Join(inside[i], name)
		}
	}
	return out, context.Cause(ctx)
}

// findProgramDirs returns the directories, on PATH or standard, in which
// commands in the image find programs.
func (b *builder) findProgramDirs(dirs []pathDir) []string {
	var inside []string
	for _, d := range dirs {
		if d.inside != "" {
			inside = append(inside, d.name)
		}
	}
	for _, dir := range standardPath {
		if b.bindsPath(dir) || b.linksPath(dir) {
			inside = append(inside, dir)
		}
	}
	return inside
}

// standardPath are the directories on every PATH in a sandbox.
var standardPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// hasProgram reports whether the image has a program in a host directory and,
// if it is a symlink, also its target.
func (b *builder) hasProgram(dir, name string) bool {
	p := filepath.Join(b.hostPath(dir), name)
	info, err := os.Lstat(p)
	if err != nil || !isProgram(p) {
		return false
	}
	if info.Mode()&os.ModeSymlink == 0 {
		return true
	}
	end, err := filepath.EvalSymlinks(p)
	return err == nil && b.showsPath(b.imagePath(end))
}

const maxToolchains = 8

// addToolchainOf adds the toolchains that a program needs to list.
func (b *builder) addToolchainOf(list []string, d pathDir, name string, o Options) []string {
	add := func(dir string) {
		below := func(have string) bool { return dir == have || isBelow(dir, have) }
		if dir == "" || b.bindsPath(dir) || len(list) == maxToolchains || slices.ContainsFunc(list, below) {
			return
		}
		list = append(list, dir)
	}
	add(b.toolchainOf(d.name, o))
	end, err := filepath.EvalSymlinks(filepath.Join(b.hostPath(d.name), name))
	if err != nil {
		return list
	}
	target := filepath.Dir(b.imagePath(end))
	if target != d.end {
		add(b.toolchainOf(target, o))
	}
	if filepath.Base(end) == "rustup" {
		rustup := o.getenv("RUSTUP_HOME")
		if rustup == "" {
			rustup = filepath.Join(o.home(), ".rustup")
		}
		if info, err := os.Stat(b.hostPath(rustup)); err == nil && info.IsDir() && checkToolchain(rustup, o) == nil {
			add(filepath.Clean(rustup))
		}
	}
	return list
}

// managers are directories below the home in which version managers keep
// toolchains and nothing of the user's own.
var managers = []string{".nvm", ".pyenv", ".rbenv", ".sdkman", ".volta", ".asdf", ".bun", ".deno", ".dotnet"}

// toolchainOf returns the toolchain directory for programs in dir: its version
// manager's, or the parent with the libraries, or dir itself. It is "" if the
// image can't show it.
func (b *builder) toolchainOf(dir string, o Options) string {
	if home := o.home(); home != "" {
		for _, name := range managers {
			if manager := filepath.Join(home, name); isBelow(dir, manager) || dir == manager {
				return manager
			}
		}
	}
	parent := filepath.Dir(dir)
	isLocal := parent == filepath.Join(o.home(), ".local") // has all programs' data
	if filepath.Base(dir) == "bin" && !isLocal && checkToolchain(parent, o) == nil {
		for _, name := range []string{"lib", "lib64", "libexec", "jre"} {
			if info, err := os.Stat(filepath.Join(b.hostPath(parent), name)); err == nil && info.IsDir() {
				return parent
			}
		}
	}
	if checkToolchain(dir, o) != nil {
		return ""
	}
	return dir
}
