package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools"
)

// Options configure the tools.
type Options struct {
	// Store holds the notes. Without one, the tools are disabled by default.
	Store *Store
	// Redact removes secrets from each text before it is stored.
	Redact func(string) string
	// Warn is called if the notes could not be read and were moved aside.
	Warn func(string)
}

// The canonical names of the tools.
const (
	AddName         tools.Name = "memory_add"
	ReplaceName     tools.Name = "memory_replace"
	ConsolidateName tools.Name = "memory_consolidate"
)

// kind is what differs between the tools.
type kind struct {
	def tools.Definition
	// change applies an input to the notes. fresh is a note of its text, without an ID.
	change func(n *Notes, in input, fresh Note) error
}

// input is the input of any of the tools.
type input struct {
	ID   string   `json:"id"`
	IDs  []string `json:"ids"`
	Text string   `json:"text"`
}

// Factories returns a factory for each tool.
func Factories(o Options) []tools.Factory {
	var all []tools.Factory
	for _, k := range []kind{newAddKind(), newReplaceKind(), newConsolidateKind()} {
		k.def.Class = tools.ClassWrite
		k.def.Runs = tools.PlaceState
		k.def.EnabledByDefault = o.Store != nil
		k.def.Summary = summarizeInput
		k.def.Aliases = map[string]string{"content": "text", "note": "text", "memory": "text"}
		all = append(all, func() tools.Tool { return &tool{kind: k, opts: o} })
	}
	return all
}

// tool is one execution of one of the tools.
type tool struct {
	kind
	opts Options
}

func (t *tool) Definition() tools.Definition { return t.def }

func (t *tool) decodeInput(call *tools.Call) (input, error) {
	var in input
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return in, fmt.Errorf("decode %s input: %w", t.def.Name, err)
	}
	in.Text = strings.TrimSpace(t.opts.Redact(in.Text))
	return in, nil
}

func (t *tool) newNote(call *tools.Call, in input) Note {
	return Note{Text: in.Text, Session: call.Session, Changed: t.opts.Store.now().UTC()}
}

// Project returns the change that the call would make, without making it.
func (t *tool) Project(_ context.Context, call *tools.Call) (tools.Projection, error) {
	in, err := t.decodeInput(call)
	if err != nil {
		return tools.Projection{}, err
	}
	before, err := t.opts.Store.Read()
	if errors.Is(err, state.ErrDamaged) { // it will be moved aside
		before, err = t.opts.Store.emptyNotes(), nil
	}
	if err != nil {
		return tools.Projection{}, err
	}
	after := before
	after.Notes = slices.Clone(before.Notes)
	err = t.change(&after, in, t.newNote(call, in))
	if err := cmp.Or(err, after.checkBounds()); err != nil {
		return tools.Projection{State: before.State()}, toolError(err)
	}
	return tools.Projection{
		Diff:  udiff.Unified("memory before", "memory after", before.String(), after.String()),
		State: before.State(),
	}, nil
}

// Execute changes the notes, all or nothing, and returns them after the change.
func (t *tool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	in, err := t.decodeInput(call)
	if err != nil {
		return tools.Output{}, err
	}
	after, aside, err := t.opts.Store.Change(ctx, call.Projected, func(n *Notes) error {
		return t.change(n, in, t.newNote(call, in))
	})
	if aside != "" {
		t.opts.Warn("the notes of the workspace could not be read, and were moved aside to " + aside)
	}
	if err != nil {
		return tools.Output{}, toolError(err)
	}
	text := fmt.Sprintf("Kept. The notes are now (%d of %d):\n%s", len(after.Notes), MaxNotes, after)
	return tools.Output{
		Content: []tools.Block{{Text: text}}, Success: true,
		Metadata: map[string]any{"notes": len(after.Notes)},
	}, nil
}

// hints tell the model how to fix an error.
var hints = []struct {
	err          error
	reason, hint string
}{
	{ErrFull, "full", "Join what belongs together by memory_consolidate, or remove notes by memory_replace with an empty text."},
	{ErrNoNote, "not_found", "The ids stand in the list of notes."},
	{ErrText, "invalid_text", "Say it shorter, in plain words."},
	{ErrChanged, "conflict", "Another session has changed the notes since this was shown; look at them and ask again."},
}

// toolError returns an error for the model if err is one that the model can fix,
// and err otherwise.
func toolError(err error) error {
	for _, h := range hints {
		if errors.Is(err, h.err) {
			return &tools.Error{
				Class: tools.ErrorExecution, Reason: h.reason, Visible: true, Err: err,
				Message: fmt.Sprintf("%v. %s Nothing was changed.", err, h.hint),
			}
		}
	}
	return err
}

const descriptionSuffix = " Notes are short facts about this workspace that a later session should know: how it is built and tested, decisions, what was tried. " +
	"They are no place for secrets, and never instructions."

func newAddKind() kind {
	return kind{
		def: tools.Definition{
			Name:        AddName,
			Description: "Keeps one note about this workspace for later sessions." + descriptionSuffix,
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "text": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "What to keep."}
  },
  "required": ["text"],
  "additionalProperties": false
}`),
		},
		change: func(n *Notes, _ input, fresh Note) error {
			n.add(fresh)
			return nil
		},
	}
}

func newReplaceKind() kind {
	return kind{
		def: tools.Definition{
			Name:        ReplaceName,
			Description: "Replaces the text of one note that was kept, or removes it where the new text is empty." + descriptionSuffix,
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "id": {"type": "string", "minLength": 1, "maxLength": 40, "description": "The note's id, such as m3."},
    "text": {"type": "string", "maxLength": 2000, "description": "Its new text; empty to remove it."}
  },
  "required": ["id", "text"],
  "additionalProperties": false
}`),
		},
		change: func(n *Notes, in input, fresh Note) error {
			i, err := n.findNote(in.ID)
			if err != nil {
				return err
			}
			if in.Text == "" {
				n.Notes = slices.Delete(n.Notes, i, i+1)
				return nil
			}
			fresh.ID = in.ID
			n.Notes[i] = fresh
			return nil
		},
	}
}

func newConsolidateKind() kind {
	return kind{
		def: tools.Definition{
			Name:        ConsolidateName,
			Description: "Joins several notes into one that says what is still worth knowing; the old ones are removed." + descriptionSuffix,
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "ids": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1, "maxItems": 100, "description": "The ids of the notes to join."},
    "text": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "The one note in their place."}
  },
  "required": ["ids", "text"],
  "additionalProperties": false
}`),
		},
		change: func(n *Notes, in input, fresh Note) error {
			for _, id := range in.IDs {
				if _, err := n.findNote(id); err != nil {
					return err
				}
			}
			n.Notes = slices.DeleteFunc(n.Notes, func(note Note) bool { return slices.Contains(in.IDs, note.ID) })
			n.add(fresh)
			return nil
		},
	}
}

func summarizeInput(raw json.RawMessage) string {
	var in input
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	if in.ID != "" {
		in.IDs = []string{in.ID}
	}
	if len(in.IDs) > 0 {
		return strings.Join(in.IDs, ", ") + ": " + in.Text
	}
	return in.Text
}
