package skill

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// FileName is the file that makes a directory a skill.
const FileName = "SKILL.md"

// Bounds of [Find].
const (
	MaxSkills = 100
	// maxEntries bounds the entries of one directory of skills.
	maxEntries = 1000
	findTime   = 10 * time.Second
)

// WorkspaceDirs returns the directories of a workspace that may hold skills.
func WorkspaceDirs() []string { return []string{".agents/skills", ".claude/skills"} }

// Options configures [Find].
type Options struct {
	// Workspace reads the workspace. Nil looks for no skills there.
	Workspace *workspace.Reader
	// Root is the path of the workspace. Directories of the operator's within it
	// are ignored. "" checks nothing.
	Root string
	// IsTrusted reports whether the user trusts a workspace file with this hash.
	// Nil trusts none.
	IsTrusted func(path, sha256 string) bool
	// Dirs are the operator's directories of skills. The first with a name counts.
	Dirs []Dir
	// Untrusted are strangers' directories, whose skills count as untrusted
	// workspace skills. Sandboxes have them at Shown.
	Untrusted []Dir
	// CheckFile refuses a file of the operator's directories that others could have
	// written. Nil accepts all.
	CheckFile func(path string) error
}

// Dir is a directory of skills outside the workspace.
type Dir struct {
	// Path is absolute. Shown is for display.
	Path, Shown string
}

// Ignored is a skill, or a directory of skills, that is not used.
type Ignored struct {
	// Name is the path, as in [Skill].
	Name string `json:"name"`
	Why  string `json:"why"`
}

type finder struct {
	opts    Options
	found   []Skill
	ignored []Ignored
}

// Find returns the skills in the workspace and in o's directories. Workspace skills
// never take the name of an operator's skill.
func Find(ctx context.Context, o Options) *Set {
	ctx, cancel := context.WithTimeoutCause(ctx, findTime, errSlow)
	defer cancel()
	f := finder{opts: o}
	for _, dir := range o.Dirs {
		f.findOutside(ctx, dir, &dir)
	}
	for _, dir := range o.Untrusted {
		f.findOutside(ctx, dir, nil)
	}
	if o.Workspace != nil {
		for _, dir := range WorkspaceDirs() {
			f.findIn(ctx, o.Workspace, dir, func(name string) string { return path.Join(dir, name) }, nil)
		}
	}
	kept := f.selectSkills()
	return &Set{skills: kept, ignored: f.ignored}
}

var errSlow = fmt.Errorf("looking for skills takes longer than %s", findTime)

func (f *finder) ignore(path string, err error) {
	f.ignored = append(f.ignored, Ignored{Name: path, Why: describeError(err)})
}

// describeError says why a skill is not used, for records.
func describeError(err error) string {
	if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindEscape {
		return "it leads outside of its directory"
	}
	return err.Error()
}

// findOutside looks for skills in a directory outside the workspace. operators is
// dir if it is the operator's, else nil.
func (f *finder) findOutside(ctx context.Context, dir Dir, operators *Dir) {
	root, err := os.Open(dir.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		f.ignore(dir.Shown, err)
		return
	}
	defer func() { _ = root.Close() }() // it was only read
	if isWithin(f.opts.Root, dir.Path) {
		f.ignore(dir.Shown, errChangeable)
		return
	}
	r, err := workspace.NewReader(root, workspace.ReaderOptions{})
	if err != nil {
		f.ignore(dir.Shown, err)
		return
	}
	f.findIn(ctx, r, ".", func(name string) string { return filepath.Join(dir.Shown, name) }, operators)
}

var errChangeable = errors.New("it is in the workspace, where commands can change it; keep your skills elsewhere")

// isWithin reports whether a directory is root or below it, whatever its spelling.
// If in doubt, it is.
func isWithin(root, dir string) bool {
	if root == "" {
		return false
	}
	top, err := os.Stat(root)
	if err != nil {
		return true
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return true
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || os.SameFile(info, top) {
			return true
		}
		above := filepath.Dir(dir)
		if above == dir {
			return false
		}
		dir = above
	}
}

// findIn looks for skills in a directory. show returns an entry's path for records.
// operators is the directory if it is the operator's, else nil.
func (f *finder) findIn(ctx context.Context, r *workspace.Reader, dir string, show func(name string) string, operators *Dir) {
	entries, more, err := r.ReadDir(ctx, dir, true, workspace.Capacity{Entries: maxEntries, Bytes: 1 << 20})
	if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindNotFound {
		return
	}
	if err != nil {
		f.ignore(show(""), err)
		return
	}
	if more {
		f.ignore(show(""), fmt.Errorf("it has more than %d entries; the rest is not looked at", maxEntries))
	}
	slices.SortFunc(entries, func(a, b workspace.Entry) int { return cmp.Compare(a.Path, b.Path) })
	for _, e := range entries {
		if e.Type != workspace.TypeDir && e.Type != workspace.TypeSymlink {
			continue
		}
		name := path.Base(e.Path)
		shown := show(path.Join(name, FileName))
		one, err := f.readSkill(ctx, r, path.Join(dir, name, FileName), name)
		if err == nil && operators != nil {
			one.dir, one.check = filepath.Join(operators.Path, name), f.opts.CheckFile
			err = one.checkFile(FileName)
		}
		if e, ok := errors.AsType[*workspace.Error](err); ok && (e.Kind == workspace.KindNotFound || e.Kind == workspace.KindNotDir) {
			continue
		}
		if err != nil {
			f.ignore(shown, err)
			continue
		}
		one.Path, one.Trust = shown, TrustUntrusted
		switch {
		case operators != nil:
			one.Trust = TrustOperator
		case f.opts.IsTrusted != nil && f.opts.IsTrusted(one.Path, one.SHA256):
			one.Trust = TrustTrusted
		}
		f.found = append(f.found, one)
	}
}

func (f *finder) readSkill(ctx context.Context, r *workspace.Reader, file, dirName string) (Skill, error) {
	content, err := r.ReadFile(ctx, file, 0, maxFileBytes)
	if err != nil {
		return Skill{}, err
	}
	if content.Truncated {
		return Skill{}, &FormatError{Problem: fmt.Sprintf("it has more than %d bytes", maxFileBytes)}
	}
	doc, err := Parse(content.Data, dirName)
	if err != nil {
		return Skill{}, err
	}
	return Skill{Document: doc, Bytes: int64(len(content.Data)), SHA256: fmt.Sprintf("%x", sha256.Sum256(content.Data))}, nil
}

// selectSkills returns the most trusted skill of each name, within the bounds.
func (f *finder) selectSkills() []Skill {
	rank := []Trust{TrustOperator, TrustTrusted, TrustUntrusted}
	slices.SortStableFunc(f.found, func(a, b Skill) int {
		return cmp.Compare(slices.Index(rank, a.Trust), slices.Index(rank, b.Trust))
	})
	var kept []Skill
	room := MaxListBytes
	for _, one := range f.found {
		i := slices.IndexFunc(kept, func(k Skill) bool { return k.Name == one.Name })
		switch {
		case i >= 0 && kept[i].SHA256 == one.SHA256:
		case i >= 0:
			f.ignore(one.Path, fmt.Errorf("%s has a skill of the same name", kept[i].Path))
		case len(kept) == MaxSkills:
			f.ignore(one.Path, fmt.Errorf("there are more than %d skills", MaxSkills))
		case len(one.listLine()) > room:
			f.ignore(one.Path, fmt.Errorf("the names and descriptions of skills have more than %d bytes", MaxListBytes))
		default:
			room -= len(one.listLine())
			kept = append(kept, one)
		}
	}
	return kept
}

// checkFile refuses a file of an operator's skill that others could have written.
func (s Skill) checkFile(name string) error {
	if s.check == nil {
		return nil
	}
	return s.check(filepath.Join(s.dir, name))
}

var errNotPrivate = errors.New("others could have written it")

// readResource reads a file in the directory of an operator's skill.
func (s Skill) readResource(ctx context.Context, name string) (workspace.File, error) {
	root, err := os.Open(s.dir)
	if err != nil {
		return workspace.File{}, err
	}
	defer func() { _ = root.Close() }() // it was only read
	r, err := workspace.NewReader(root, workspace.ReaderOptions{})
	if err != nil {
		return workspace.File{}, err
	}
	content, err := r.ReadFile(ctx, name, 0, maxResourceBytes)
	if err == nil && s.checkFile(name) != nil {
		return workspace.File{}, errNotPrivate
	}
	return content, err
}

// listResources returns up to maxResources files of an operator's skill, without
// the SKILL.md and files that others could have written.
func (s Skill) listResources(ctx context.Context) (names []string, more bool) {
	root, err := os.Open(s.dir)
	if err != nil {
		return nil, false
	}
	defer func() { _ = root.Close() }() // it was only read
	r, err := workspace.NewReader(root, workspace.ReaderOptions{MaxEntries: maxEntries})
	if err != nil {
		return nil, false
	}
	list, err := r.List(ctx, ".", 4)
	if err != nil {
		return nil, false
	}
	for _, e := range list.Entries {
		switch {
		case e.Type != workspace.TypeFile || e.Path == FileName || strings.HasPrefix(path.Base(e.Path), "."):
		case len(names) == maxResources:
			return names, true
		case s.checkFile(e.Path) == nil:
			names = append(names, e.Path)
		}
	}
	return names, list.Truncated
}

const (
	maxResources     = 50
	maxResourceBytes = 64 << 10
)
