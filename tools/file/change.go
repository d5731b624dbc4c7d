package file

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// kind is one of the tools that change a file.
type kind struct {
	def tools.Definition
	// op returns the change for an input.
	op     func(input json.RawMessage) (workspace.Op, error)
	report func(workspace.Change) string
}

type changer struct {
	kind
	reader workspace.View
	apply  applier
}

func changeFactory(o Options, k kind) tools.Factory {
	k.def.Class, k.def.Runs, k.def.EnabledByDefault = tools.ClassWrite, tools.PlaceSandbox, true
	return func() tools.Tool { return &changer{kind: k, reader: o.Reader, apply: o.Applier} }
}

func (c *changer) Definition() tools.Definition { return c.def }

func (c *changer) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	op, err := c.newOp(ctx, call)
	if err != nil {
		return tools.Projection{}, err
	}
	p, err := ProjectedDiff(ctx, c.reader, op)
	if err != nil {
		p.Diff = fmt.Sprintf("--- a/%s\n+++ b/%[1]s\nNo diff: %v.\n", op.Path, err)
	}
	p.State += " " + c.identify(ctx, op)
	return p, nil
}

// newOp returns the change for a call. Except for a delete, a symlink stands for
// the file that it leads to.
func (c *changer) newOp(ctx context.Context, call *tools.Call) (workspace.Op, error) {
	op, err := c.op(call.Input)
	if err == nil {
		op.Path, err = workspace.FollowLink(ctx, c.reader, op.Path, op.Kind != workspace.OpDelete)
	}
	return op, err
}

// identify returns a change's path. For a directory to delete it adds the inode,
// because no content hash covers that.
func (c *changer) identify(ctx context.Context, op workspace.Op) string {
	if info, err := c.reader.Lstat(ctx, op.Path); op.Recursive && err == nil && info.Type == workspace.TypeDir {
		return fmt.Sprintf("%d %s", info.Inode, op.Path)
	}
	return op.Path
}

// Execute applies the change in the sandbox. If it was shown beforehand, it applies
// only to the content that was shown. An error that the model can fix is a
// [tools.Error]; if a delete failed halfway, the Output still names the path.
func (c *changer) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	op, err := c.newOp(ctx, call)
	if err != nil {
		return tools.Output{}, toolError(ctx, c.reader, err)
	}
	var shown string
	if op.IfSHA256, shown, _ = strings.Cut(call.Projected, " "); call.Projected != "" && shown != c.identify(ctx, op) {
		return tools.Output{}, refuse(string(workspace.KindConflict), "%q leads to another file since the change was shown; read it again. Nothing was changed.", op.Path)
	}
	change, err := c.apply.Apply(ctx, op)
	if err != nil {
		var out tools.Output
		if change.Removed > 0 {
			out.FilesModified = []string{change.Path}
		}
		return out, toolError(ctx, c.reader, err)
	}
	out := textOutput(c.report(change))
	out.FilesModified = []string{change.Path}
	out.Metadata = map[string]any{"bytes": change.Bytes, "created": change.Created}
	return out, nil
}

func decodeInput[In any](raw json.RawMessage, op func(In) workspace.Op) (workspace.Op, error) {
	var in In
	if err := json.Unmarshal(raw, &in); err != nil {
		return workspace.Op{}, fmt.Errorf("decode input: %w", err)
	}
	return op(in), nil
}

type writeFileInput struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func writeFile() kind {
	return kind{
		def: tools.Definition{
			Name: tools.NameWriteFile,
			Description: "Creates a file of the workspace, or overwrites it, with the whole content given. Missing directories are made. " +
				"To change a part of a file use patch_file.",
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "The file, relative to the workspace."},
    "content": {"type": "string", "description": "The whole new content, with a newline at its end where it is text."}
  },
  "required": ["path", "content"],
  "additionalProperties": false
}`),
			Aliases: pathAliases(map[string]string{"file_text": "content", "contents": "content", "text": "content"}),
			Paths:   onePath(""),
		},
		op: func(raw json.RawMessage) (workspace.Op, error) {
			return decodeInput(raw, func(in writeFileInput) workspace.Op {
				return workspace.Op{Kind: workspace.OpWrite, Path: in.Path, Content: []byte(in.Content)}
			})
		},
		report: func(c workspace.Change) string {
			verb := "Overwrote"
			if c.Created {
				verb = "Created"
			}
			return fmt.Sprintf("%s %s (%s).", verb, shown(c.Path), limits.FormatCount(int(c.Bytes), "byte"))
		},
	}
}

type patchFileInput struct {
	Path       string `json:"path"`
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all"`
}

func patchFile() kind {
	return kind{
		def: tools.Definition{
			Name: tools.NamePatchFile,
			Description: "Replaces a text in a file of the workspace. `old` must be in the file exactly once, character for character, white " +
				"space included: add lines around it until it is unique, or set replace_all. Read the file first.",
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "The file, relative to the workspace."},
    "old": {"type": "string", "minLength": 1, "description": "The text to replace."},
    "new": {"type": "string", "description": "What to put in its place; empty to remove it."},
    "replace_all": {"type": "boolean", "description": "Replace every occurrence."}
  },
  "required": ["path", "old", "new"],
  "additionalProperties": false
}`),
			Aliases: pathAliases(map[string]string{
				"old_string": "old", "old_str": "old", "old_text": "old", "oldString": "old",
				"new_string": "new", "new_str": "new", "new_text": "new", "newString": "new", "replaceAll": "replace_all", "allow_multiple": "replace_all",
			}),
			Paths: onePath(""),
		},
		op: func(raw json.RawMessage) (workspace.Op, error) {
			return decodeInput(raw, func(in patchFileInput) workspace.Op {
				return workspace.Op{Kind: workspace.OpPatch, Path: in.Path, Old: in.Old, New: in.New, ReplaceAll: in.ReplaceAll}
			})
		},
		report: func(c workspace.Change) string {
			return fmt.Sprintf("Patched %s: replaced %s (now %s).", shown(c.Path), limits.FormatCount(c.Replacements, "place"), limits.FormatCount(int(c.Bytes), "byte"))
		},
	}
}

type deleteFileInput struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
}

func deleteFile() kind {
	return kind{
		def: tools.Definition{
			Name: tools.NameDeleteFile,
			Description: "Deletes a file of the workspace, or a symlink itself. A directory is deleted, with all that is in it, only where " +
				"recursive is set.",
			InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "The file or directory, relative to the workspace."},
    "recursive": {"type": "boolean", "description": "Delete a directory and everything in it."}
  },
  "required": ["path"],
  "additionalProperties": false
}`),
			Aliases: pathAliases(nil),
			Paths:   onePath(""),
		},
		op: func(raw json.RawMessage) (workspace.Op, error) {
			return decodeInput(raw, func(in deleteFileInput) workspace.Op {
				return workspace.Op{Kind: workspace.OpDelete, Path: in.Path, Recursive: in.Recursive}
			})
		},
		report: func(c workspace.Change) string {
			if c.Removed > 1 {
				return fmt.Sprintf("Deleted %s (%s).", shown(c.Path), limits.FormatCount(c.Removed, "entry"))
			}
			return fmt.Sprintf("Deleted %s.", shown(c.Path))
		},
	}
}
