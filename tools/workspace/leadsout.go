package workspace

import "strings"

// LeadsOut reports whether a symlink at path, relative to the workspace, leads
// out of the workspace, through other symlinks too. The function readLink returns
// the target of a symlink in the workspace, and false for anything else.
func LeadsOut(path, target string, readLink func(path string) (string, bool)) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	at := strings.Split(path, "/")
	at = at[:len(at)-1]
	rest := strings.Split(target, "/")
	for links := 1; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return true
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, name)
		next, ok := readLink(strings.Join(at, "/"))
		if !ok {
			continue
		}
		if links++; links > 40 { // as the kernel's own bound: it leads nowhere
			return false
		}
		if strings.HasPrefix(next, "/") {
			return true
		}
		at = at[:len(at)-1]
		rest = append(strings.Split(next, "/"), rest...)
	}
	return false
}
