package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/caisson-run/caisson/tools/workspace"
)

// journal keeps what a patch is about to do where the end of the sandbox, or of
// this process, doesn't reach it.
type journal interface {
	// Begin keeps a patch before anything of it is done, and fails where it
	// can't: then nothing is done. The patch is forgotten by forget, which is
	// called once it is done or undone, or the model knows what is left of it, and
	// never where the sandbox is lost.
	Begin(p Pending) (forget func(), err error)
}

// Pending is a patch that has begun, as a journal keeps it: with what its files
// held and what is to become of them, which is enough to end it, by [Recover],
// from whatever moment it was cut off at. It holds the files' content.
//
//	{"temp":"K7…","files":[{"path":"a.go","existed":true,"before":"cGFja2FnZQ==","after":"9f86…","mode":420}]}
type Pending struct {
	// Temp is in the names of the temporary files; see workspace.Op.
	Temp  string        `json:"temp"`
	Files []PendingFile `json:"files"`
}

// PendingFile is one file of a [Pending] patch.
type PendingFile struct {
	// Path is relative to the workspace.
	Path string `json:"path"`
	// Existed says that there was such a file, Before what it held.
	Existed bool   `json:"existed,omitempty"`
	Before  []byte `json:"before,omitempty"`
	// After is the hex SHA-256 of what it is to hold, or "absent".
	After string `json:"after"`
	// From and To are the other ends of a move, Mode the file's before.
	From string      `json:"from,omitempty"`
	To   string      `json:"to,omitempty"`
	Mode fs.FileMode `json:"mode,omitempty"`
}

// pending gives the plan as a journal keeps it.
func (p *plan) pending() Pending {
	out := Pending{Temp: p.temp}
	for _, t := range p.targets {
		if t.changes() {
			out.Files = append(out.Files, PendingFile{
				Path: t.path, Existed: t.before.exists, Before: t.before.content, After: t.after.sum, From: t.from, To: t.to, Mode: t.mode,
			})
		}
	}
	return out
}

// plan gives back the plan, without the content that the patch was to write.
func (p Pending) plan() *plan {
	out := &plan{byPath: map[string]*target{}, temp: p.Temp}
	for _, f := range p.Files {
		t := &target{
			path: f.Path, before: stateOf(f.Before, f.Existed), after: state{exists: f.After != absent, sum: f.After},
			from: f.From, to: f.To, mode: f.Mode,
		}
		out.targets = append(out.targets, t)
		out.byPath[t.path] = t
	}
	return out
}

// Outcome is what became of a patch that was cut off.
type Outcome string

// What [Recover] does.
const (
	// Undone: every file is as it was before the patch.
	Undone Outcome = "undone"
	// Completed: every file is as the patch makes it.
	Completed Outcome = "completed"
	// Left: files are as they were found, because one of them is neither as it
	// was nor as the patch makes it, or what could not be changed back.
	Left Outcome = "left"
)

// Recovery says what became of a patch that was cut off.
type Recovery struct {
	Outcome Outcome
	// Changed are the files that were changed for it.
	Changed []string
	// Notes say of each file what it is, where the outcome is Left.
	Notes []string
}

// Recover ends a patch that was cut off: it is completed where only deletes are
// missing, and undone otherwise. What somebody changed since is never
// overwritten: where a file is neither as it was nor as the patch makes it,
// nothing is changed at all. It may be cut off itself, at any moment, and called
// again. Its errors are those of the sandbox, or the end of ctx.
func Recover(ctx context.Context, r workspace.View, apply applier, pending Pending) (Recovery, error) {
	p := pending.plan()
	if err := p.clear(ctx, apply); err != nil {
		return Recovery{}, fmt.Errorf("end patch: %w", err)
	}
	before, err := p.progress(ctx, r)
	if err != nil {
		return Recovery{}, fmt.Errorf("end patch: %w", err)
	}
	out := Recovery{Outcome: Left}
	switch {
	case before.all(asBefore):
		out.Outcome = Undone
	case before.all(asAfter):
		out.Outcome = Completed
	case before.any(strange):
	default:
		if err := p.end(ctx, r, apply, before); err != nil {
			return Recovery{}, fmt.Errorf("end patch: %w", err)
		}
	}
	now, err := p.progress(ctx, r)
	if err != nil {
		return Recovery{}, fmt.Errorf("end patch: %w", err)
	}
	for i, t := range p.targets {
		if now[i] != before[i] {
			out.Changed = append(out.Changed, t.path)
		}
	}
	switch {
	case now.all(asBefore):
		out.Outcome = Undone
	case now.all(asAfter):
		out.Outcome = Completed
	default:
		out.Outcome = Left
		for i, t := range p.targets {
			out.Notes = append(out.Notes, shown(t.path)+" "+now[i].words())
		}
	}
	return out, nil
}

// end completes the patch or undoes it.
func (p *plan) end(ctx context.Context, r workspace.View, apply applier, now progress) error {
	steps := p.steps()
	if p.written(now) {
		for _, s := range steps {
			if s.do.Kind != workspace.OpDelete {
				continue
			}
			if err := unanswered(apply.Apply(ctx, s.do)); err != nil {
				return err
			}
		}
		now, err := p.progress(ctx, r)
		if err != nil || now.all(asAfter) {
			return err
		}
		// One of them can't be made: that may be why the patch was being undone.
	}
	for _, s := range slices.Backward(steps) {
		if err := unanswered(apply.Apply(ctx, s.undo)); err != nil {
			return err
		}
	}
	return nil
}

// unanswered gives the error of a change that is no answer to it: one that is
// refused has met a file that is not as a step left it, which is then seen.
func unanswered(_ workspace.Change, err error) error {
	if _, refused := errors.AsType[*workspace.Error](err); refused {
		return nil
	}
	return err
}

// clear removes the temporary file that a write may have left, beside any of the
// files.
func (p *plan) clear(ctx context.Context, apply applier) error {
	if p.temp == "" {
		return nil
	}
	seen := map[string]bool{}
	for _, t := range p.targets {
		dir := path.Dir(t.path)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		op := workspace.Op{Kind: workspace.OpDelete, Path: path.Join(dir, workspace.TempName(p.temp))}
		if err := unanswered(apply.Apply(ctx, op)); err != nil {
			return err
		}
	}
	return nil
}

// where is how far a patch has come with one file.
type where int

const (
	strange where = iota // neither
	asBefore
	asAfter
	midway // moved, and not yet changed
)

func (w where) words() string {
	switch w {
	case asBefore:
		return "is as it was before the patch"
	case asAfter:
		return "is as the patch makes it"
	case midway:
		return "is moved and not yet changed"
	}
	return "is neither as it was before the patch nor as the patch makes it"
}

// progress is how far a patch has come with each of its files.
type progress []where

func (p progress) all(w where) bool {
	return !slices.ContainsFunc(p, func(x where) bool { return x != w })
}

func (p progress) any(w where) bool { return slices.Contains(p, w) }

// progress looks at each file. A path that can't be read as a file is strange.
func (p *plan) progress(ctx context.Context, r workspace.View) (progress, error) {
	out := make(progress, len(p.targets))
	for i, t := range p.targets {
		content, exists, err := current(ctx, r, t.path)
		if e, ok := errors.AsType[*workspace.Error](err); err != nil && (!ok || e.Kind == workspace.KindTimeout) {
			return nil, err
		}
		sum := ""
		if err == nil {
			sum = stateOf(content, exists).sum
		}
		switch {
		case sum == t.before.sum:
			out[i] = asBefore
		case sum == t.after.sum:
			out[i] = asAfter
		case t.from != "" && sum == p.byPath[t.from].before.sum:
			out[i] = midway
		}
	}
	return out, nil
}

// written says that nothing but deletes is missing.
func (p *plan) written(now progress) bool {
	for i, t := range p.targets {
		if now[i] != asAfter && !t.deleted() {
			return false
		}
	}
	return true
}

// deleted says that a step of its own removes the file.
func (t *target) deleted() bool { return !t.after.exists && (t.to == "" || !t.renamed()) }

// newTemp is a name for the temporary files of one patch.
func newTemp() string { return rand.Text() }
