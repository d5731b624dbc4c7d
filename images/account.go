package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// UserAccount is the user that an image's USER names.
type UserAccount struct {
	// Name is the user's name in the image's /etc/passwd, or "" if it has none.
	Name string
	// UID is never 0. GID is 0 if the image names no group but root's.
	UID, GID int
	// Groups are the supplementary groups, in ascending order, without 0 and
	// GID.
	Groups []int
	// Home is the home directory, or "" if it is not an absolute, clean path or
	// is /.
	Home string
}

// UserError is the error for an image with a USER that commands can't run as.
// It wraps [ErrInvalid].
type UserError struct {
	User   string // as the image writes it
	Reason string
	Hint   string
}

func (e *UserError) Error() string {
	return fmt.Sprintf("%v: USER %.300q: %s: %s", ErrInvalid, e.User, e.Reason, e.Hint)
}

func (e *UserError) Unwrap() error { return ErrInvalid }

// AccountFiles are an image's /etc/passwd and /etc/group, which are hostile
// input.
type AccountFiles struct {
	Passwd, Group []byte
	// Added are the names of the accounts that precede the image's own in both
	// files; see [RootFS].
	Added []string
}

const (
	// MaxAccountFile is the maximum size of an account file.
	MaxAccountFile = 1 << 20
	maxAccountLine = 64 << 10 // as engines accept
	maxGroups      = 32
	maxID          = math.MaxInt32 // as engines accept
)

// CheckUser returns a [*UserError] for a USER that is invalid, or is root
// whatever accounts the image has.
func CheckUser(text string) error {
	if text == "" {
		return rootError(text)
	}
	user, err := ParseUser(text)
	if err != nil {
		return &UserError{User: text, Reason: "it is not a user", Hint: "want a name or number, and perhaps a group after a colon"}
	}
	id, err := parseID(text, user.Name)
	if err == nil && (id == 0 || user.Name == "root") {
		err = rootError(text)
	}
	return err
}

func rootError(text string) error {
	return &UserError{User: text, Reason: "it is root", Hint: "use user root, or user owner for commands without privileges"}
}

// parseID returns the number in a part of a USER, or -1 for a name. Like an
// engine, it accepts "+1" and "01" as numbers.
func parseID(text, part string) (int, error) {
	id, err := strconv.Atoi(part)
	switch {
	case err != nil && strings.Trim(part, "0123456789") != "":
		return -1, nil
	case err != nil || id < 0 || id > maxID:
		return 0, &UserError{User: text, Reason: "its number is out of range", Hint: fmt.Sprintf("want at most %d", maxID)}
	}
	return id, nil
}

// FindAccount returns a USER's account, like an engine: the first line with a
// name or number counts, and a number needs no line. The user gets the
// supplementary groups that list it as a member, unless USER names a group.
// Malformed lines are ignored. The error is a [*UserError].
func FindAccount(text string, files AccountFiles) (UserAccount, error) {
	if err := CheckUser(text); err != nil {
		return UserAccount{}, err
	}
	user, err := ParseUser(text)
	if err != nil {
		return UserAccount{}, err
	}
	account, err := findUser(text, user.Name, files)
	if err != nil {
		return UserAccount{}, err
	}
	if account.UID == 0 {
		return UserAccount{}, rootError(text)
	}
	if user.Group != "" {
		account.GID, err = findGroup(text, user.Group, files)
		return account, err
	}
	if account.Name == "" {
		return account, nil
	}
	err = eachLine(text, files.Group, files.Added, func(fields []string) bool {
		if gid, ok := parseField(fields, 2); ok && gid != 0 && gid != account.GID && len(fields) > 3 && slices.Contains(strings.Split(fields[3], ","), account.Name) {
			account.Groups = append(account.Groups, gid)
		}
		return len(account.Groups) <= maxGroups
	})
	if err == nil && len(account.Groups) > maxGroups {
		err = &UserError{User: text, Reason: fmt.Sprintf("it is in more than %d groups", maxGroups), Hint: "name one group after a colon"}
	}
	slices.Sort(account.Groups)
	account.Groups = slices.Compact(account.Groups)
	return account, err
}

func findUser(text, name string, files AccountFiles) (UserAccount, error) {
	id, err := parseID(text, name)
	if err != nil {
		return UserAccount{}, err
	}
	account, found := UserAccount{UID: max(id, 0)}, id >= 0
	err = eachLine(text, files.Passwd, files.Added, func(fields []string) bool {
		uid, ok := parseField(fields, 2)
		gid, hasGroup := parseField(fields, 3)
		if !ok || !hasGroup || id >= 0 && uid != id || id < 0 && fields[0] != name {
			return true
		}
		found = true
		account = UserAccount{Name: fields[0], UID: uid, GID: gid}
		if len(fields) > 5 && isHome(fields[5]) {
			account.Home = fields[5]
		}
		return false
	})
	if err == nil && !found {
		err = &UserError{User: text, Reason: "the image's /etc/passwd has no user of that name", Hint: "add it to the image, or use user owner"}
	}
	return account, err
}

func isHome(dir string) bool {
	return path.IsAbs(dir) && path.Clean(dir) == dir && dir != "/" && len(dir) < maxPath && !strings.ContainsFunc(dir, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func findGroup(text, name string, files AccountFiles) (int, error) {
	id, err := parseID(text, name)
	if err != nil || id >= 0 {
		return id, err
	}
	err = eachLine(text, files.Group, files.Added, func(fields []string) bool {
		if gid, ok := parseField(fields, 2); ok && fields[0] == name {
			id = gid
		}
		return id < 0
	})
	if err == nil && id < 0 {
		err = &UserError{User: text, Reason: "the image's /etc/group has no group of that name", Hint: "add it to the image, or use user owner"}
	}
	return max(id, 0), err
}

// eachLine calls visit with the fields of each line that has a valid name,
// until visit returns false.
func eachLine(text string, file []byte, added []string, visit func(fields []string) bool) error {
	for line := range bytes.Lines(file) {
		if len(line) > maxAccountLine {
			return &UserError{User: text, Reason: fmt.Sprintf("an account file of the image has a line of more than %d bytes", maxAccountLine), Hint: "use user owner"}
		}
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), ":")
		if len(added) > 0 && fields[0] == added[0] {
			added = added[1:]
			continue
		}
		added = nil
		if _, err := ParseUser(fields[0]); err == nil && !visit(fields) {
			return nil
		}
	}
	return nil
}

func parseField(fields []string, i int) (int, bool) {
	if i >= len(fields) {
		return 0, false
	}
	id, err := strconv.ParseUint(fields[i], 10, 31)
	return int(id), err == nil
}

// ReadAccountFiles reads an unpacked image's account files, to look up user. A
// missing file is empty. It follows no symlink.
func ReadAccountFiles(root *RootFS, user string) (AccountFiles, error) {
	files := AccountFiles{Added: root.Added}
	dir, err := os.OpenRoot(root.Dir)
	if err != nil {
		return files, err
	}
	defer func() { _ = dir.Close() }()
	if info, err := dir.Lstat("etc"); err == nil && !info.IsDir() {
		return files, CheckAccountFile(user, "/etc", info.Mode(), 0)
	}
	for name, content := range map[string]*[]byte{"etc/passwd": &files.Passwd, "etc/group": &files.Group} {
		if *content, err = readAccountFile(dir, name, user); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return files, err
		}
	}
	return files, nil
}

func readAccountFile(dir *os.Root, name, user string) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := CheckAccountFile(user, "/"+name, info.Mode(), info.Size()); err != nil {
		return nil, err
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, MaxAccountFile))
}

// CheckAccountFile returns a [*UserError] for an account file that is not
// regular or too large to read.
func CheckAccountFile(user, name string, mode fs.FileMode, size int64) error {
	reason := ""
	switch {
	case !mode.IsRegular():
		reason = "the image's " + name + " is no regular file, in which users could be looked up"
	case size > MaxAccountFile:
		reason = fmt.Sprintf("the image's %s has more than %d bytes", name, MaxAccountFile)
	default:
		return nil
	}
	return &UserError{User: user, Reason: reason, Hint: "use user owner"}
}

// HasDir reports whether an unpacked image has the directory name, an absolute
// path. It follows symlinks inside the image.
func (r *RootFS) HasDir(name string) bool {
	dir, err := os.OpenRoot(r.Dir)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat(strings.TrimPrefix(name, "/"))
	return err == nil && info.IsDir()
}
