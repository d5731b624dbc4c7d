package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// undoTime bounds the undoing of a patch, even after the call was cancelled.
const undoTime = 20 * time.Second

type patchApplier struct {
	reader workspace.View
	apply  applier
	mark   func(paths []string) (unmark func(), err error) // [Options].MarkPatch
}

func applyPatch(o Options) tools.Factory {
	return func() tools.Tool { return &patchApplier{reader: o.Reader, apply: o.Applier, mark: o.MarkPatch} }
}

func (a *patchApplier) Definition() tools.Definition {
	return tools.Definition{
		Name: "apply_patch",
		Description: "Changes files of the workspace by one patch: all of it, or none. The patch begins with a line *** Begin Patch and ends with " +
			"*** End Patch. Between them, for each file: *** Add File: PATH, then the lines of the new file, each after a +; " +
			"*** Delete File: PATH; or *** Update File: PATH, then *** Move to: PATH where it gets another name, then hunks. " +
			"A hunk begins with @@, or @@ and a whole line of the file above the place, such as a function's first line; its lines begin with a space " +
			"(stays), - (goes) or + (comes). Give about three lines of context on both sides, character for character, until the place is the only one; " +
			"*** End of File after a hunk means that it ends the file. Hunks stand in the file's order. Paths are relative to the workspace.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "patch": {"type": "string", "minLength": 1, "description": "The whole patch, from *** Begin Patch to *** End Patch."}
  },
  "required": ["patch"],
  "additionalProperties": false
}`),
		Class: tools.ClassWrite, Runs: tools.PlaceSandbox, EnabledByDefault: true,
		Aliases: map[string]string{"input": "patch", "patch_text": "patch", "patchText": "patch", "diff": "patch"},
		Paths:   patchPaths,
		Summary: patchSummary,
		ActsAs:  patchParts,
	}
}

func patchSections(raw json.RawMessage) ([]section, error) {
	var in struct {
		Patch string `json:"patch"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, fmt.Errorf("decode apply_patch input: %w", err)
	}
	return parsePatch(in.Patch)
}

// patchPaths returns every path that a patch names. A malformed patch names none:
// it changes nothing.
func patchPaths(raw json.RawMessage) []string {
	sections, err := patchSections(raw)
	if err != nil {
		return nil
	}
	var paths []string
	for _, s := range sections {
		for _, path := range []string{s.path, s.to} {
			if path != "" && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// patchParts returns the tools whose work a patch does. A malformed patch does
// none.
func patchParts(raw json.RawMessage) []tools.Name {
	sections, err := patchSections(raw)
	if err != nil {
		return nil
	}
	var names []tools.Name
	for _, s := range sections {
		switch {
		case s.action == actionAdd:
			names = append(names, tools.NameWriteFile)
		case s.action == actionDelete:
			names = append(names, tools.NameDeleteFile)
		case s.to != "":
			names = append(names, tools.NameWriteFile, tools.NameDeleteFile)
		}
		if s.action == actionUpdate && len(s.hunks) > 0 {
			names = append(names, tools.NamePatchFile)
		}
	}
	return names
}

func patchSummary(raw json.RawMessage) string {
	return strings.Join(patchPaths(raw), ", ")
}

func (a *patchApplier) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	p, err := a.newPlan(ctx, call)
	if err != nil {
		return tools.Projection{}, err
	}
	return p.projection(), nil
}

func (a *patchApplier) newPlan(ctx context.Context, call *tools.Call) (*plan, error) {
	sections, err := patchSections(call.Input)
	if err != nil {
		return nil, err
	}
	return newPlan(ctx, a.reader, sections)
}

// Execute makes all changes of the patch or none: if one fails, it undoes those
// before it, and the error and the Output tell what could not be undone. Each
// change applies only to the content that the patch was computed from.
func (a *patchApplier) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	p, err := a.newPlan(ctx, call)
	if err != nil {
		return tools.Output{}, toolError(ctx, a.reader, err)
	}
	if call.Projected != "" && call.Projected != p.stateID() {
		return tools.Output{}, refuse(string(workspace.KindConflict), "A file of the patch has changed since the patch was shown; read it again. Nothing was changed.")
	}
	unmark, err := a.markPatch(p)
	if err != nil {
		return tools.Output{}, err
	}
	steps := p.steps()
	for i, s := range steps {
		if _, err := a.apply.Apply(ctx, s.do); err != nil {
			out, over, err := a.undo(ctx, p, steps[:i+1], err)
			if over {
				unmark()
			}
			return out, err
		}
	}
	unmark()
	return p.output(), nil
}

// markPatch calls [Options].MarkPatch. A single change is atomic and needs no mark.
func (a *patchApplier) markPatch(p *plan) (unmark func(), err error) {
	if a.mark == nil || len(p.steps()) < 2 {
		return func() {}, nil
	}
	unmark, err = a.mark(p.changedPaths())
	if err != nil {
		return nil, fmt.Errorf("apply patch: nothing was changed: %w", err)
	}
	return unmark, nil
}

// undo reverts the steps, starting with the last one, which failed but may have
// been done if its answer was lost. A step is reverted only if the file is as the
// step left it; comparing files then finds what still differs. over reports whether
// the patch has ended: it was undone, or the model can read what is left. It has
// not if the sandbox is lost: that ends the run and cuts the patch off.
func (a *patchApplier) undo(parent context.Context, p *plan, steps []step, cause error) (_ tools.Output, over bool, _ error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(parent), undoTime, errors.New("undoing the patch took too long"))
	defer cancel()
	reported, answered := errors.AsType[*workspace.Error](cause)
	lost := isLost(cause)
	for i, s := range slices.Backward(steps) {
		if answered && i == len(steps)-1 {
			continue // it was refused, so nothing was done
		}
		// findDifferences finds what could not be reverted.
		_, err := a.apply.Apply(ctx, s.undo)
		lost = lost || isLost(err)
	}
	changed, notes := p.findDifferences(ctx, a.reader)
	text := fmt.Sprintf("The patch failed at step %d of %d", len(steps), len(p.steps()))
	if answered {
		text += ": " + strings.TrimSuffix(reported.Error(), ".")
	}
	if len(changed) == 0 {
		text += ". What had been done was undone: every file is as it was."
	} else {
		text += ". Not all of it could be undone: " + strings.Join(notes, "; ") + ". Every other file is as it was."
	}
	if made := p.createdDirectories(ctx, a.reader); len(made) > 0 {
		text += " Directories that were made for it are left: " + strings.Join(made, ", ") + "."
	}
	fail := &tools.Error{Class: tools.ErrorExecution, Reason: "patch_failed", Message: text, Visible: true, Err: cause}
	if answered {
		fail.Reason = string(reported.Kind)
	}
	if parent.Err() != nil { // the message then reports that the call was cancelled
		fail.Partial = text
	}
	return tools.Output{FilesModified: changed}, !lost, fail
}

func isLost(err error) bool {
	return errors.Is(err, tools.ErrSandboxLost) || errors.Is(err, tools.ErrSandboxStart)
}

// findDifferences returns the paths that are not as before the patch, with a note
// on each.
func (p *plan) findDifferences(ctx context.Context, r workspace.View) (changed, notes []string) {
	for _, t := range p.targets {
		if note := t.difference(ctx, r); note != "" {
			changed = append(changed, t.path)
			notes = append(notes, shown(t.path)+" "+note)
		}
	}
	return changed, notes
}

// difference says how a file differs from before, or "".
func (t *target) difference(ctx context.Context, r workspace.View) string {
	content, exists, err := readCurrent(ctx, r, t.path)
	now := stateOf(content, exists)
	switch {
	case err != nil:
		return "could not be read"
	case now.sum == t.before.sum:
		if info, err := r.Lstat(ctx, t.path); err == nil && t.before.exists && info.Mode != t.mode {
			return fmt.Sprintf("has its content again, but the mode %v instead of %v", info.Mode, t.mode)
		}
		return ""
	case now.sum == t.after.sum && exists:
		return "is as the patch makes it"
	case !exists:
		return "is gone"
	}
	return "is neither as it was nor as the patch makes it"
}

// createdDirectories returns directories that the patch made and that still exist.
func (p *plan) createdDirectories(ctx context.Context, r workspace.View) []string {
	var left []string
	for _, t := range p.targets {
		if t.created == "" || slices.Contains(left, shown(t.created)) {
			continue
		}
		if _, err := r.Stat(ctx, t.created); err == nil {
			left = append(left, shown(t.created))
		}
	}
	return left
}

func (p *plan) output() tools.Output {
	var b strings.Builder
	b.WriteString("Applied the patch:\n")
	var files []string
	for _, t := range p.targets {
		if !t.isChanged() {
			continue
		}
		files = append(files, t.path)
		size := limits.FormatCount(len(t.after.content), "byte")
		switch {
		case t.to != "":
			continue
		case t.from != "":
			fmt.Fprintf(&b, "moved %s to %s (%s)", shown(t.from), shown(t.path), size)
		case !t.before.exists:
			fmt.Fprintf(&b, "created %s (%s)", shown(t.path), size)
		case !t.after.exists:
			fmt.Fprintf(&b, "deleted %s", shown(t.path))
		default:
			fmt.Fprintf(&b, "changed %s (%s, now %s)", shown(t.path), limits.FormatCount(t.hunks, "hunk"), size)
		}
		if t.loosest > exact {
			b.WriteString(" [" + t.loosest.words() + "]")
		}
		b.WriteByte('\n')
	}
	out := textOutput(b.String())
	out.FilesModified = files
	out.Metadata = map[string]any{"files": len(files)}
	return out
}
