package workspace

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strings"
)

// Bounds of a path.
const (
	// MaxPathBytes is PATH_MAX (4096) without the final NUL.
	MaxPathBytes = 4095
	// MaxNameBytes is NAME_MAX on every file system that a workspace can be on.
	MaxNameBytes = 255
)

// prefixes are the absolute spellings of the workspace. They are only cut off; the
// kernel resolves the rest.
type prefixes struct {
	host, container string
}

func newPrefixes(host, container string) prefixes {
	clean := func(p string) string {
		if p == "" {
			return ""
		}
		return path.Clean(p)
	}
	return prefixes{host: clean(host), container: clean(container)}
}

// relativePath returns name relative to the workspace and cleaned. ".." removes the
// name before it even if that is a symlink, so that a path means the file that
// results and records show; [Reader.Scope] refuses a path that a shell would
// resolve to another file. This is no security check: the kernel resolves the
// result.
func (p prefixes) relativePath(name string) (string, *Error) {
	rest, e := p.stripPrefix(name)
	if e != nil {
		return "", e
	}
	rest = path.Clean(rest)
	if rest == ".." || strings.HasPrefix(rest, "../") {
		return "", newEscapeError(name, nil)
	}
	return rest, nil
}

// stripPrefix returns name relative to the workspace, not cleaned. It tries the
// container's path first, because the model knows that one.
func (p prefixes) stripPrefix(name string) (string, *Error) {
	if e := checkSpelling(name); e != nil {
		return "", e
	}
	if !path.IsAbs(name) {
		return name, nil
	}
	rest, ok := cutPrefix(name, p.container)
	if !ok {
		rest, ok = cutPrefix(name, p.host)
	}
	if !ok {
		return "", newEscapeError(name, nil)
	}
	return rest, nil
}

// cutPrefix cuts the directory prefix off an absolute path. An empty prefix never
// matches.
func cutPrefix(name, prefix string) (string, bool) {
	if prefix == "" {
		return "", false
	}
	if strings.HasPrefix(name, "/") {
		name = "/" + strings.TrimLeft(name, "/")
	}
	if name == prefix {
		return ".", true
	}
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(prefix, "/")+"/")
	if !ok {
		return "", false
	}
	if rest = strings.TrimLeft(rest, "/"); rest == "" {
		rest = "."
	}
	return rest, true
}

func checkSpelling(name string) *Error {
	switch {
	case name == "":
		return &Error{Kind: KindInvalid, Path: name, Detail: "the path is empty; give one relative to the workspace"}
	case strings.IndexByte(name, 0) >= 0:
		return &Error{Kind: KindInvalid, Path: name, Detail: "a path must not hold a NUL byte"}
	case len(name) > MaxPathBytes:
		return &Error{Kind: KindInvalid, Path: abbreviatePath(name), Detail: "the path is longer than 4095 bytes"}
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > MaxNameBytes {
			return &Error{Kind: KindInvalid, Path: abbreviatePath(name), Detail: "a name in the path is longer than 255 bytes"}
		}
	}
	return nil
}

func abbreviatePath(name string) string {
	const keep = 80
	if len(name) <= 2*keep {
		return name
	}
	return name[:keep] + "…" + name[len(name)-keep:]
}

// splitPath returns the directory and the last name of a path, uncleaned. The name
// is "" if the path is the workspace itself or ends in "..".
func splitPath(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	if name == "." || name == ".." {
		return rel, ""
	}
	if dir = strings.TrimRight(dir, "/"); dir == "" {
		dir = "."
	}
	return dir, name
}

func joinPath(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// SymlinkEscapes reports whether a symlink at path, relative to the workspace,
// leads out of the workspace, possibly through other symlinks. readLink returns the
// target of a symlink in the workspace, and false for anything else.
func SymlinkEscapes(path, target string, readLink func(path string) (string, bool)) bool {
	_, inside := followLinks(path, func(name string) (string, bool) {
		if name == path {
			return target, true
		}
		return readLink(name)
	})
	return !inside
}

// followLinks returns where path leads without symlinks, or false if that is
// outside the workspace; readLink is as in [SymlinkEscapes].
func followLinks(path string, readLink func(path string) (string, bool)) (to string, inside bool) {
	var at []string
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return "", false
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, name)
		next, ok := readLink(strings.Join(at, "/"))
		if !ok {
			continue
		}
		if links++; links > 40 { // the kernel's own bound: it leads nowhere
			break
		}
		if strings.HasPrefix(next, "/") {
			return "", false
		}
		at = at[:len(at)-1]
		rest = append(strings.Split(next, "/"), rest...)
	}
	return strings.Join(at, "/"), true
}

// FollowLink returns the symlink-free path of the file that a change of path applies
// to. With last it also follows a symlink at the end, which must lead to something.
// It fails if path leads outside.
func FollowLink(ctx context.Context, v View, path string, last bool) (string, error) {
	info, err := v.Lstat(ctx, path)
	if last && err == nil && info.Type == TypeSymlink {
		_, err = v.Stat(ctx, path)
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == KindNotFound {
			e.Detail = "is a symlink to a file that does not exist; write that file by its own path, or delete the symlink first"
		}
		if err != nil {
			return "", err
		}
	}
	rel, err := v.Relative(path)
	if err != nil {
		return path, nil //nolint:nilerr // the change itself will say it
	}
	dirs, name := rel, ""
	if !last {
		dirs, name = splitPath(rel)
	}
	to, inside := followLinks(dirs, func(at string) (string, bool) {
		info, err := v.Lstat(ctx, at)
		return info.Target, err == nil && info.Type == TypeSymlink
	})
	if !inside {
		return "", newEscapeError(path, nil)
	}
	return cmp.Or(strings.Trim(to+"/"+name, "/"), "."), nil
}
