package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// LinkRule decides which symlinks of an archive stay. It is for archives whose
// author must not choose what the reader finds: a symlink to a file that only
// the reader has, such as the expected answer, would become the author's
// answer.
//
// A symlink stays if its target, fully resolved, exists and was written for the
// same archive or lies in Within. Every symlink of the archive on the way must
// meet the same condition, and no symlink on the way may be in /proc. A symlink
// also stays if it was there before with the same target.
type LinkRule struct {
	// From is the absolute path that the archive's content came from. Absolute
	// symlinks into it become relative. "" changes none.
	From string
	// Within are directories below the directory to unpack to, or "." for that
	// directory. Except and Mounts are directories that don't count.
	// Directories that contain one of Except don't count either. The innermost
	// directory decides.
	Within, Except, Mounts []string
	// LeftOut, if not nil, is called for each symlink that is removed again.
	LeftOut func(name, target string)
}

// maxHops bounds how many symlinks may follow each other, like the kernel.
const maxHops = 40

// makeLinks makes the symlinks that u.o.Links decides about, unless they are
// there already, and removes the ones that may not stay. It runs at the end, so
// an archive that is cut off leaves no symlink.
func (u *unpacker) makeLinks() (err error) {
	own := map[string]bool{}
	defer func() { err = errors.Join(err, u.checkLinks(own)) }()
	for _, name := range slices.Sorted(maps.Keys(u.links)) {
		if err := u.enterDirectory(path.Dir(name)); err != nil {
			return err
		}
		if there, err := u.dir.Readlink(path.Base(name)); err == nil && there == u.links[name].target {
			if err := u.setOwner(u.dir, path.Base(name), u.links[name].owner); err != nil {
				return err
			}
			continue
		}
		own[name] = true
		if err := u.makeLink(name, u.links[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkLinks removes the archive's own symlinks that may not stay: all of them,
// once too many names were looked up.
func (u *unpacker) checkLinks(own map[string]bool) error {
	type link struct{ name, target string }
	var bad []link
	var failed error
	for _, name := range slices.Sorted(maps.Keys(own)) {
		target, err := u.root.Readlink(name)
		if err != nil {
			continue // another entry took its place or a directory's above
		}
		hops, ok := 0, false
		if failed == nil {
			_, ok = u.followLink(name, own, &hops)
			failed = u.takeSteps("")
		}
		if !ok || failed != nil {
			bad = append(bad, link{name, target})
		}
	}
	for _, l := range bad {
		if err := u.root.Remove(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("leave %.60q out: %w", l.name, err)
		}
		if u.o.Links.LeftOut != nil {
			u.o.Links.LeftOut(l.name, l.target)
		}
	}
	return failed
}

// followLink returns the name that a symlink finally leads to, and whether the
// symlink may stay.
func (u *unpacker) followLink(name string, own map[string]bool, hops *int) (string, bool) {
	if *hops++; *hops > maxHops {
		return "", false
	}
	if u.isRoot && contains("proc", name) { // another process would find other files there
		return "", false
	}
	target, err := u.root.Readlink(name)
	if err != nil {
		return "", false
	}
	at := path.Dir(name)
	if path.IsAbs(target) {
		if !u.isRoot { // it leads elsewhere on this machine
			return "", false
		}
		at = "."
	}
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." && !u.isRoot {
				return "", false
			}
			at = path.Join("/", at, "..")[1:]
			if at == "" {
				at = "."
			}
			continue
		}
		at = path.Join(at, part)
		if u.takeSteps(at) != nil {
			return "", false
		}
		info, err := u.root.Lstat(at)
		if err != nil {
			return "", false
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			var ok bool
			if at, ok = u.followLink(at, own, hops); !ok {
				return "", false
			}
		}
	}
	return at, !own[name] || u.mayLeadTo(at)
}

// mayLeadTo reports whether a symlink may lead to name, which is not a symlink.
func (u *unpacker) mayLeadTo(name string) bool {
	info, err := u.root.Lstat(name)
	if err != nil {
		return false
	}
	if u.wrote(info) {
		return true
	}
	rule := u.o.Links
	for _, dir := range rule.Except {
		if contains(name, dir) {
			return false
		}
	}
	within := innermost(rule.Within, name)
	except := innermost(slices.Concat(rule.Except, rule.Mounts), name)
	return within != "" && (except == "" || contains(except, within))
}

// innermost returns the innermost of the directories that contain name, or "".
func innermost(dirs []string, name string) (found string) {
	for _, dir := range dirs {
		if contains(dir, name) && (found == "" || contains(found, dir)) {
			found = dir
		}
	}
	return found
}

// withoutFrom makes an absolute target relative if it leads into the archive's
// content.
func (u *unpacker) withoutFrom(name, target string) string {
	from := u.o.Links.From
	if from == "" || !path.IsAbs(target) || !contains(from, path.Clean(target)) {
		return target
	}
	rest := strings.TrimPrefix(path.Clean(target), from)
	relative, err := filepath.Rel(path.Dir("/"+name), path.Join("/", u.o.Name, rest))
	if err != nil {
		return target
	}
	return relative
}

// contains reports whether name is dir or lies below it.
func contains(dir, name string) bool {
	return dir == "." || name == dir || strings.HasPrefix(name, dir+"/")
}
