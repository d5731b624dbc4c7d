package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of one patch.
const (
	maxPatchFiles = 500
	maxPatchBytes = 64 << 20 // of all files, before and after
)

type state struct {
	exists  bool
	content []byte
	sum     string // hex SHA-256 or absent, as in [workspace.Op].IfSHA256
}

const absent = "absent"

func stateOf(content []byte, exists bool) state {
	if !exists {
		return state{sum: absent}
	}
	return state{exists: true, content: content, sum: fmt.Sprintf("%x", sha256.Sum256(content))}
}

// target is what a patch does to one path, whichever sections name it.
type target struct {
	path          string
	before, after state
	from, to      string
	// mode is the existing file's mode. created is the topmost directory to make
	// for a new file, or "".
	mode    fs.FileMode
	created string
	hunks   int
	loosest looseness
}

// plan is a whole patch, computed but not applied.
type plan struct {
	targets []*target
	byPath  map[string]*target
	bytes   int
}

// newPlan computes a plan. It fails unless the whole patch fits.
func newPlan(ctx context.Context, r workspace.View, sections []section) (*plan, error) {
	p := &plan{byPath: map[string]*target{}}
	for _, s := range sections {
		if err := p.addSection(ctx, r, s); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(p.targets, (*target).isChanged) {
		return nil, refuse("no_change", "The patch changes nothing: every file would be as it is.")
	}
	return p, nil
}

func (t *target) isChanged() bool { return t.before.sum != t.after.sum || t.from != "" || t.to != "" }

// isMoved reports whether the path is one end of a move. No other section may then
// name it.
func (t *target) isMoved() bool { return t.from != "" || t.to != "" }

func (p *plan) changedPaths() []string {
	var paths []string
	for _, t := range p.targets {
		if t.isChanged() {
			paths = append(paths, shown(t.path))
		}
	}
	return paths
}

func (p *plan) addSection(ctx context.Context, r workspace.View, s section) error {
	t, err := p.targetFor(ctx, r, s.path)
	if err != nil {
		return err
	}
	if t.isMoved() {
		return s.newError("exists", "is moved by this patch and can't be named again in it; put all its changes into the section that moves it")
	}
	switch s.action {
	case actionAdd:
		if t.after.exists {
			return s.newError("exists", "exists already; change it with *** Update File:, or put *** Delete File: before *** Add File: to replace it")
		}
		d := document{lines: s.lines, end: "\n", open: s.open}
		return p.setAfter(t, stateOf(d.bytes(), true))
	case actionDelete:
		if err := s.requireFile(ctx, r, t); err != nil {
			return err
		}
		return p.setAfter(t, stateOf(nil, false))
	}
	if !t.after.exists {
		return s.missingError(ctx, r)
	}
	content := t.after.content
	if len(s.hunks) > 0 {
		var loose looseness
		if content, loose, err = applyHunks(ctx, t.path, content, s.hunks); err != nil {
			return err
		}
		t.hunks, t.loosest = t.hunks+len(s.hunks), max(t.loosest, loose)
	}
	if s.to == "" {
		return p.setAfter(t, stateOf(content, true))
	}
	return p.moveFile(ctx, r, s, t, stateOf(content, true))
}

// moveFile plans a move. [plan.steps] says when that is a rename.
func (p *plan) moveFile(ctx context.Context, r workspace.View, s section, t *target, after state) error {
	if err := s.requireFile(ctx, r, t); err != nil {
		return err
	}
	if t.before.sum != t.after.sum {
		return s.newError("exists", "is changed twice by this patch and moved; put all its changes into the section that moves it")
	}
	to, err := p.targetFor(ctx, r, s.to)
	if err != nil {
		return err
	}
	if to.before.exists || to.after.exists || to.isMoved() || to == t {
		return s.newError("exists", "can't be moved to %s, which exists already", shown(s.to))
	}
	to.from, t.to = t.path, to.path
	to.hunks, to.loosest = t.hunks, t.loosest
	if err := p.setAfter(t, stateOf(nil, false)); err != nil {
		return err
	}
	return p.setAfter(to, after)
}

func (p *plan) targetFor(ctx context.Context, r workspace.View, name string) (*target, error) {
	real, err := workspace.FollowLink(ctx, r, name, true)
	if err != nil {
		return nil, err
	}
	rel, err := r.Relative(real)
	if err != nil {
		return nil, err
	}
	if t := p.byPath[rel]; t != nil {
		return t, nil
	}
	if len(p.targets) == maxPatchFiles {
		return nil, refuse("too_large", "The patch names more than %d files; make several of it. Nothing was changed.", maxPatchFiles)
	}
	content, exists, err := readCurrent(ctx, r, real)
	if err != nil {
		return nil, err
	}
	t := &target{path: rel, before: stateOf(content, exists)}
	t.after = t.before
	t.readMode(ctx, r)
	p.targets = append(p.targets, t)
	p.byPath[rel] = t
	return t, p.addBytes(len(content))
}

// readMode records what an undo can't restore from the content.
func (t *target) readMode(ctx context.Context, r workspace.View) {
	if t.before.exists {
		if info, err := r.Lstat(ctx, t.path); err == nil {
			t.mode = info.Mode
		}
		return
	}
	for dir := path.Dir(t.path); dir != "."; dir = path.Dir(dir) {
		_, err := r.Stat(ctx, dir)
		if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindNotFound {
			return
		}
		t.created = dir
	}
}

func (p *plan) setAfter(t *target, after state) error {
	t.after = after
	if len(after.content) > workspace.MaxWriteBytes {
		return refuse("too_large", "%s would have %d bytes; at most %d can be written. Nothing was changed.", shown(t.path), len(after.content), workspace.MaxWriteBytes)
	}
	return p.addBytes(len(after.content))
}

func (p *plan) addBytes(n int) error {
	if p.bytes += n; p.bytes > maxPatchBytes {
		return refuse("too_large", "The files of the patch have more than %d bytes together; make several patches of it. Nothing was changed.", maxPatchBytes)
	}
	return nil
}

// requireFile refuses to delete or move a symlink: its target's content was read,
// but the operation would act on the symlink.
func (s section) requireFile(ctx context.Context, r workspace.View, t *target) error {
	if !t.after.exists {
		return s.missingError(ctx, r)
	}
	if !t.before.exists {
		return nil // added by this patch
	}
	info, err := r.Lstat(ctx, s.path)
	if err != nil {
		return err
	}
	if info.Type != workspace.TypeFile {
		return s.newError("not_regular", "is a %s; a patch deletes and moves files only", info.Type)
	}
	return nil
}

func (s section) missingError(ctx context.Context, r workspace.View) error {
	return s.newError("not_found", "there is no such file to change; add it with *** Add File:, or look for its name with glob%s", similarName(ctx, r, s.path))
}

func (s section) newError(reason, format string, args ...any) error {
	return refuse(reason, "%s (line %d of the patch): "+format+". Nothing was changed.", append([]any{shown(s.path), s.line}, args...)...)
}

func (p *plan) stateID() string {
	sum := sha256.New()
	for _, t := range p.targets {
		fmt.Fprintf(sum, "%q %s\n", t.path, t.before.sum)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func (p *plan) projection() tools.Projection {
	var b strings.Builder
	for _, t := range p.targets {
		switch {
		case !t.isChanged():
		case t.from != "":
			from := p.byPath[t.from]
			fmt.Fprintf(&b, "rename from %s\nrename to %s\n", t.from, t.path)
			b.WriteString(unifiedDiff(t.path, from.before.content, t.after.content, true, false))
		case t.to == "":
			b.WriteString(unifiedDiff(t.path, t.before.content, t.after.content, t.before.exists, !t.after.exists))
		}
	}
	return tools.Projection{Diff: b.String(), State: p.stateID()}
}

const newFileMode = 0o644

// needsRename reports whether a moved file has a mode to keep. Other files are
// written anew and deleted, because a session can show a diff of that.
func (t *target) needsRename() bool { return t.mode.Perm() != newFileMode }

// step is one change and its inverse.
type step struct{ do, undo workspace.Op }

// steps returns the changes in order. Deletes come last, because undoing one
// restores the content but not the mode.
func (p *plan) steps() []step {
	var steps, deletes []step
	for _, t := range p.targets {
		write := step{
			do:   workspace.Op{Kind: workspace.OpWrite, Path: t.path, Content: t.after.content, IfSHA256: t.before.sum},
			undo: workspace.Op{Kind: workspace.OpWrite, Path: t.path, Content: t.before.content, IfSHA256: t.after.sum},
		}
		switch {
		case t.to != "" && !t.needsRename():
			write.do = workspace.Op{Kind: workspace.OpDelete, Path: t.path, IfSHA256: t.before.sum}
			deletes = append(deletes, write)
		case t.to != "" || !t.isChanged():
		case t.from != "" && p.byPath[t.from].needsRename():
			before := p.byPath[t.from].before
			steps = append(steps, step{
				do:   workspace.Op{Kind: workspace.OpRename, Path: t.from, To: t.path, IfSHA256: before.sum},
				undo: workspace.Op{Kind: workspace.OpRename, Path: t.path, To: t.from, IfSHA256: before.sum},
			})
			if before.sum != t.after.sum {
				write.do.IfSHA256, write.undo.Content = before.sum, before.content
				steps = append(steps, write)
			}
		case !t.before.exists:
			write.undo = workspace.Op{Kind: workspace.OpDelete, Path: t.path, IfSHA256: t.after.sum}
			steps = append(steps, write)
		case !t.after.exists:
			write.do = workspace.Op{Kind: workspace.OpDelete, Path: t.path, IfSHA256: t.before.sum}
			deletes = append(deletes, write)
		default:
			steps = append(steps, write)
		}
	}
	return append(steps, deletes...)
}
