package workspace

import (
	"path"
	"strings"
)

// Bounds of a path, as it is given by a model.
const (
	// MaxPathBytes is Linux's PATH_MAX (4096, include/uapi/linux/limits.h)
	// without its final NUL.
	MaxPathBytes = 4095
	// MaxNameBytes is NAME_MAX of every file system that a workspace can be on.
	MaxNameBytes = 255
)

// prefixes are the absolute spellings of the workspace itself. They are only
// taken off; what is left is resolved by the kernel below the held folder.
type prefixes struct {
	host, container string
}

func newPrefixes(host, container string) prefixes {
	clean := func(p string) string {
		if p == "" {
			return ""
		}
		return path.Clean(strings.ReplaceAll(p, `\`, "/"))
	}
	p := prefixes{container: clean(container)}
	if pathSeparator == '\\' {
		p.host = clean(host)
	} else if host != "" {
		p.host = path.Clean(host)
	}
	return p
}

// relative gives name relative to the workspace, cleaned: ".." takes the name
// before it away, be that a link or not, so that a path means what results and
// records say of it. Where a shell would mean another file, [Reader.Scope]
// refuses the path.
//
// It is no check: what it gives is still resolved by the kernel.
func (p prefixes) relative(name string) (string, *Error) {
	rest, e := p.spelled(name)
	if e != nil {
		return "", e
	}
	rest = path.Clean(rest)
	if rest == ".." || strings.HasPrefix(rest, "../") {
		return "", escape(name, nil)
	}
	return rest, nil
}

// spelled returns name relative to the workspace, not cleaned. The container's
// path is tried before the host's, since it is the one that a model is told.
func (p prefixes) spelled(name string) (string, *Error) {
	if e := checkSpelling(name); e != nil {
		return "", e
	}
	rest := name
	if pathSeparator == '\\' {
		rest = strings.ReplaceAll(rest, `\`, "/")
	}
	if isAbsolute(rest) {
		after, ok := cutPrefix(rest, p.container)
		if !ok {
			after, ok = cutPrefix(rest, p.host)
		}
		if !ok {
			return "", escape(name, nil)
		}
		rest = after
	}
	return rest, nil
}

// cutPrefix takes the folder prefix off an absolute path; "" is no prefix of any.
func cutPrefix(name, prefix string) (string, bool) {
	if prefix == "" {
		return "", false
	}
	// "//a" is "/a" on every system that Caisson runs on.
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

// isAbsolute knows a leading slash and, on Windows, a drive or a share.
func isAbsolute(name string) bool {
	if strings.HasPrefix(name, "/") {
		return true
	}
	return pathSeparator == '\\' && len(name) >= 2 && name[1] == ':'
}

func checkSpelling(name string) *Error {
	switch {
	case name == "":
		return &Error{Kind: KindInvalid, Path: name, Detail: "the path is empty; give one relative to the workspace"}
	case strings.IndexByte(name, 0) >= 0:
		return &Error{Kind: KindInvalid, Path: name, Detail: "a path must not hold a NUL byte"}
	case len(name) > MaxPathBytes:
		return &Error{Kind: KindInvalid, Path: abbreviate(name), Detail: "the path is longer than 4095 bytes"}
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > MaxNameBytes {
			return &Error{Kind: KindInvalid, Path: abbreviate(name), Detail: "a name in the path is longer than 255 bytes"}
		}
	}
	return nil
}

// abbreviate keeps an error's text small where the path is the problem.
func abbreviate(name string) string {
	const keep = 80
	if len(name) <= 2*keep {
		return name
	}
	return name[:keep] + "…" + name[len(name)-keep:]
}

// split gives the folder and the last name of a path; name is "" where that
// is the workspace itself, or ends in "..". Nothing is cleaned.
func split(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	if name == "." || name == ".." {
		return rel, ""
	}
	if dir = strings.TrimRight(dir, "/"); dir == "" {
		dir = "."
	}
	return dir, name
}

// below gives the path of name in the folder dir.
func below(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}
