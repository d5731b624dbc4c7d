package workmount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

const (
	// maxNested bounds the nested repositories that are mounted, and the
	// privileged files too. Each mount costs 5 to 20 ms in gVisor.
	maxNested = 64
	// maxLostNames bounds the names in one lost protection.
	maxLostNames = 5
	// maxSecondNames bounds the files of a repository that are examined for
	// other names.
	maxSecondNames = 10_000
)

// mercurialObeyed are the entries of .hg that hg obeys: hgrc configures
// extensions, hooks and aliases, and sharedpath names another repository with
// an hgrc.
var mercurialObeyed = []string{"hgrc", "hgrc-not-shared", "requires", "sharedpath"}

// nestedGuards returns the guards of repositories below the top. Those that
// can't be guarded are lost: the end of the session compares them with its
// beginning.
func nestedGuards(workspace *os.File, base string, mode sandbox.GitMode, nested []string) (list []guard, lost []string) {
	var beyond, odd, linked []string
	guarded := 0
	for _, name := range nested {
		kind, err := kindOf(workspace, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil || !isBindable(kind) || !isMountable(name) || !isRepository(workspace, name, kind):
			odd = append(odd, name)
			continue
		case guarded == maxNested:
			beyond = append(beyond, name)
			continue
		}
		guarded++
		list = append(list, nestedGuard(workspace, name, kind, mode)...)
		if kind != unix.S_IFDIR {
			continue
		}
		if second, err := secondName(workspace, name, gitExecutable[:]); err != nil || second != "" {
			linked = append(linked, name)
		}
		lost = append(lost, lostConfigured(workspace, base, name)...)
	}
	for _, l := range []struct {
		names []string
		text  string
	}{
		{beyond, "are beyond the %d that are protected"},
		{odd, "can't be protected, because of their names or because they are symlinks"},
		{linked, "have files that have other names too (hard links), by which commands can change them"},
	} {
		if len(l.names) > 0 {
			lost = append(lost, lostNames("nested repositories", l.names)+" "+strings.Replace(l.text, "%d", fmt.Sprint(maxNested), 1)+": what commands change in them is quarantined when the session ends")
		}
	}
	return list, lost
}

// fileGuards returns the guards of files that commands must not change. A
// mounted file can't be renamed, removed or linked outside its mount, and it
// stays mounted if a directory above it is renamed.
func fileGuards(workspace *os.File, names []string) (list []guard, lost []string) {
	var open []string
	for _, name := range names {
		kind, err := kindOf(workspace, name)
		switch {
		case errors.Is(err, unix.ENOENT) || name == ownConfig || strings.HasPrefix(name, ownConfig+"/"): // it is covered
		case err != nil || kind != unix.S_IFREG || !isMountable(name) || len(list) == maxNested:
			open = append(open, name)
		default:
			list = append(list, guard{name: name, readOnly: true})
		}
	}
	if len(open) > 0 {
		lost = []string{fmt.Sprintf("%s can't be protected, because of their names or because there are more than %d: those that commands change lose set-user-ID, set-group-ID and capabilities when the session ends",
			lostNames("privileged files", open), maxNested)}
	}
	return list, lost
}

// lostNames lists the first of names, and how many more there are.
func lostNames(what string, names []string) string {
	var quoted []string
	for _, n := range names[:min(len(names), maxLostNames)] {
		quoted = append(quoted, fmt.Sprintf("%q", n))
	}
	text := what + " (" + strings.Join(quoted, ", ")
	if more := len(names) - maxLostNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ")"
}

// nestedGuard returns the guards of one repository: all of it or, with
// [sandbox.GitCommit], the entries that git obeys. Missing entries are not
// reserved: the end of the session finds new ones.
func nestedGuard(workspace *os.File, name string, kind uint32, mode sandbox.GitMode) []guard {
	if mode != sandbox.GitCommit || kind != unix.S_IFDIR || path.Base(name) != gitName {
		return []guard{{name: name, readOnly: true}}
	}
	list := []guard{{name: name}}
	for _, entry := range gitExecutable {
		if kind, err := kindOf(workspace, path.Join(name, entry)); err == nil && isBindable(kind) {
			list = append(list, guard{name: path.Join(name, entry), readOnly: true})
		}
	}
	return list
}

// isRepository reports whether something is certainly a repository, which a
// directory that looks like a bare one need not be.
func isRepository(workspace *os.File, name string, kind uint32) bool {
	if slices.Contains([]string{gitName, mercurialName}, path.Base(name)) {
		return true
	}
	head, err := readSmall(workspace, path.Join(name, "HEAD"))
	isHead := strings.HasPrefix(head, "ref: refs/") || len(head) >= 40 && strings.Trim(head, "0123456789abcdef") == ""
	return err == nil && isHead && kind == unix.S_IFDIR
}

// isMountable reports whether every engine accepts a name in a mount's target.
func isMountable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(`\:,"`, r) })
}

// secondName returns a file of a repository that a git or hg of the host obeys
// and that has a second name, or "". Commands could change it by that name
// although the repository is mounted read-only.
func secondName(workspace *os.File, repo string, obeyed []string) (string, error) {
	look := maxSecondNames
	for _, entry := range obeyed {
		name := path.Join(repo, entry)
		kind, err := kindOf(workspace, name)
		switch {
		case err != nil:
			continue // missing, or it can't be reached
		case kind == unix.S_IFDIR && (entry == "modules" || entry == "worktrees"):
			continue // see below
		case kind == unix.S_IFDIR || kind == unix.S_IFREG:
			if second, err := linkedFile(workspace, name, &look, nil); err != nil || second != "" {
				return second, err
			}
		}
	}
	for _, entry := range []string{"modules", "worktrees"} {
		if slices.Contains(obeyed, entry) {
			if second, err := linkedFile(workspace, path.Join(repo, entry), &look, gitExecutable[:]); err != nil || second != "" {
				return second, err
			}
		}
	}
	return "", nil
}

// linkedFile returns the first file at or below name that has a second name, or
// "". If names is not nil, only files with these names, or in their
// directories, count. It returns name if there are more than *look files.
func linkedFile(workspace *os.File, name string, look *int, names []string) (string, error) {
	f, err := openBelow(workspace, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", nil
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		if st.Nlink > 1 && (names == nil || slices.Contains(names, path.Base(name))) {
			return name, nil
		}
		return "", nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", nil
	}
	entries, err := f.ReadDir(*look + 1)
	if *look -= len(entries); *look < 0 {
		return name, nil // too many files
	}
	if err != nil && len(entries) == 0 {
		return "", nil // the end
	}
	for _, e := range entries {
		deeper := names
		switch {
		case names != nil && e.IsDir() && slices.Contains([]string{"objects", "refs", "logs", "lfs"}, e.Name()):
			continue
		case names != nil && e.IsDir() && slices.Contains([]string{"hooks", "info"}, e.Name()):
			deeper = nil
		}
		if second, err := linkedFile(workspace, path.Join(name, e.Name()), look, deeper); err != nil || second != "" {
			return second, err
		}
	}
	return "", nil
}

func twoNames(name string) error {
	if name == "" {
		return nil
	}
	return fmt.Errorf("%w: %s has a second name (a hard link), through which commands could change it: replace the file with a copy", sandbox.ErrInvalid, name)
}
