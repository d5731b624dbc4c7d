package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
)

// bindsPath reports whether the image shows the host's p at p.
func (b *builder) bindsPath(p string) bool {
	return slices.ContainsFunc(b.fs.Binds, func(have images.Bind) bool {
		return have.IsDir && (p == have.Path || isBelow(p, have.Path))
	})
}

// addSearchPath adds the directories of PATH that the image has and warns of
// programs in the others.
func (b *builder) addSearchPath(list string) {
	var absent []string
	for _, dir := range filepath.SplitList(list) {
		clean := filepath.Clean(dir)
		end, err := filepath.EvalSymlinks(b.hostPath(clean))
		if err != nil || !filepath.IsAbs(dir) {
			continue
		}
		inside := filepath.Clean("/" + strings.TrimPrefix(end, b.root))
		switch {
		case b.bindsPath(clean) || b.linksPath(clean):
			b.fs.Path = append(b.fs.Path, clean)
		case b.bindsPath(inside):
			b.fs.Path = append(b.fs.Path, inside)
		default:
			absent = append(absent, clean)
		}
	}
	b.fs.Path = removeDuplicates(b.fs.Path)
	for _, dir := range removeDuplicates(absent) {
		if text := b.describeMissing(dir); text != "" {
			b.fs.Warnings = append(b.fs.Warnings, text)
		}
	}
}

// describeMissing returns a warning about the programs of dir, a directory of
// PATH, that the image has nowhere on its own PATH, or "" if there are none.
func (b *builder) describeMissing(dir string) string {
	names := slices.DeleteFunc(programsIn(b.hostPath(dir)), func(name string) bool {
		return slices.ContainsFunc(b.fs.Path, func(p string) bool { return isProgram(filepath.Join(b.hostPath(p), name)) })
	})
	if len(names) == 0 {
		return ""
	}
	shown := strings.Join(names[:min(len(names), 5)], ", ")
	if len(names) > 5 {
		shown += fmt.Sprintf(" and %d more", len(names)-5)
	}
	return fmt.Sprintf("%s is on PATH but not in the host image, which therefore lacks: %s. "+
		"Name the toolchain's directory in the configuration, or use an image that has them.", dir, shown)
}

// linksPath reports whether p is a symlink of the skeleton, such as /bin, or
// lies below one.
func (b *builder) linksPath(p string) bool {
	return slices.ContainsFunc(b.fs.Symlinks, func(l images.Symlink) bool { return p == l.Path || isBelow(p, l.Path) })
}

// programsIn lists the executable files in dir, sorted.
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

// removeDuplicates returns list without repetitions, in the same order.
func removeDuplicates(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
