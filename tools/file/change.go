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

type changer struct {
	def    tools.Definition
	kind   workspace.OpKind
	reader workspace.View
	apply  applier
}

func changeFactory(o Options, kind workspace.OpKind, def tools.Definition) tools.Factory {
	def.Class, def.Runs, def.EnabledByDefault = tools.ClassWrite, tools.PlaceSandbox, true
	return func() tools.Tool { return &changer{def, kind, o.Reader, o.Applier} }
}

func (c *changer) Definition() tools.Definition { return c.def }

func (c *changer) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	op, err := c.newOp(ctx, call)
	if err != nil {
		return tools.Projection{}, err
	}
	p, err := projectedDiff(ctx, c.reader, op)
	if err != nil {
		p.Diff = fmt.Sprintf("--- a/%s\n+++ b/%[1]s\nNo diff: %v.\n", op.Path, err)
	}
	p.State += " " + c.identify(ctx, op)
	return p, nil
}

// newOp returns the change for a call. Except for a delete, a symlink stands for
// the file that it leads to.
func (c *changer) newOp(ctx context.Context, call *tools.Call) (workspace.Op, error) {
	// Each schema has some of these.
	var in struct {
		Path       string `json:"path"`
		Content    string `json:"content"`
		Old        string `json:"old"`
		New        string `json:"new"`
		ReplaceAll bool   `json:"replace_all"`
		Recursive  bool   `json:"recursive"`
	}
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return workspace.Op{}, fmt.Errorf("decode input: %w", err)
	}
	op := workspace.Op{Kind: c.kind, Content: []byte(in.Content), Old: in.Old, New: in.New, ReplaceAll: in.ReplaceAll, Recursive: in.Recursive}
	var err error
	op.Path, err = workspace.FollowLink(ctx, c.reader, in.Path, c.kind != workspace.OpDelete)
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
	out := textOutput(describeChange(c.kind, change))
	out.FilesModified = []string{change.Path}
	out.Metadata = map[string]any{"bytes": change.Bytes, "created": change.Created}
	return out, nil
}

func describeChange(kind workspace.OpKind, c workspace.Change) string {
	path, size := shown(c.Path), limits.FormatCount(int(c.Bytes), "byte")
	switch {
	case kind == workspace.OpPatch:
		return fmt.Sprintf("Patched %s: replaced %s (now %s).", path, limits.FormatCount(c.Replacements, "place"), size)
	case kind == workspace.OpDelete && c.Removed > 1:
		return fmt.Sprintf("Deleted %s (%s).", path, limits.FormatCount(c.Removed, "entry"))
	case kind == workspace.OpDelete:
		return fmt.Sprintf("Deleted %s.", path)
	case c.Created:
		return fmt.Sprintf("Created %s (%s).", path, size)
	}
	return fmt.Sprintf("Overwrote %s (%s).", path, size)
}

func writeFileDefinition() tools.Definition {
	return tools.Definition{
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
	}
}

func patchFileDefinition() tools.Definition {
	return tools.Definition{
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
	}
}

func deleteFileDefinition() tools.Definition {
	return tools.Definition{
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
	}
}
