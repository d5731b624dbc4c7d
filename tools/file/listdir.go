package file

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	maxListed    = 1000
	maxListDepth = 10
)

func listDirDefinition() tools.Definition {
	return tools.Definition{
		Name: "list_dir",
		Description: "Lists a directory of the workspace, hidden files too: one entry a line, directories with a slash at the end, " +
			"files with their size, symlinks with their targets. `depth` goes into directories that many levels (1 when left out, " +
			"at most 10). At most 1000 entries are returned, those nearest the top first, and a note if there are more. " +
			"To find files by name use glob.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "path": {"type": "string", "description": "The directory, relative to the workspace; the workspace itself when left out."},
    "depth": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How many levels to list."}
  },
  "additionalProperties": false
}`),
		Aliases: map[string]string{"dir_path": "path", "dir": "path", "directory": "path", "file_path": "path"},
		Paths:   onePath("."),
	}
}

type listDirInput struct {
	Path  string `json:"path"`
	Depth count  `json:"depth"`
}

func (r *readers) listDir(ctx context.Context, in listDirInput) (tools.Output, error) {
	if in.Path == "" {
		in.Path = "."
	}
	list, err := r.view.List(ctx, in.Path, in.Depth.orDefault(1, maxListDepth))
	if err != nil {
		return tools.Output{}, err
	}
	entries, cut := firstByDepth(list.Entries, maxListed)
	var b strings.Builder
	odd := 0
	for _, e := range entries {
		if b.Len() > windowBytes {
			cut = true
			break
		}
		if unnameable(e.Path) {
			odd++
		}
		b.WriteString(entryLine(e))
	}
	out := textOutput(b.String())
	switch {
	case cut || list.Truncated:
		out.Truncated = true
		addNote(&out, fmt.Sprintf("%s shown, there are more: list a directory below, or use glob", limits.FormatCount(strings.Count(b.String(), "\n"), "entry")))
	case len(entries) == 0:
		addNote(&out, "the directory is empty")
	}
	if len(list.Incomplete) > 0 {
		out.Truncated = true
		addNote(&out, "not read: "+strings.Join(shownAll(list.Incomplete), ", "))
	}
	noteNames(&out, odd)
	return out, nil
}

// firstByDepth keeps the most entries nearest the top, in the order of a tree.
func firstByDepth(entries []workspace.Entry, most int) (kept []workspace.Entry, cut bool) {
	if len(entries) <= most {
		return entries, false
	}
	slices.SortStableFunc(entries, func(a, b workspace.Entry) int { return a.Depth - b.Depth })
	kept = entries[:most]
	slices.SortFunc(kept, func(a, b workspace.Entry) int { return workspace.TreeOrder(a.Path, b.Path) })
	return kept, true
}

func entryLine(e workspace.Entry) string {
	name := shown(e.Path)
	switch e.Type {
	case workspace.TypeDir:
		return name + "/\n"
	case workspace.TypeFile:
		return fmt.Sprintf("%s  (%s)\n", name, limits.FormatCount(int(e.Size), "byte"))
	case workspace.TypeSymlink:
		return fmt.Sprintf("%s -> %s\n", name, shown(e.Target))
	}
	return fmt.Sprintf("%s  (%s, can't be read)\n", name, e.Type)
}

func shownAll(paths []string) []string {
	all := make([]string, len(paths))
	for i, p := range paths {
		all[i] = shown(p)
	}
	return all
}

// noteNames explains names shown with \x.
func noteNames(out *tools.Output, odd int) {
	if odd > 0 {
		addNote(out, limits.FormatCount(odd, "name")+` with \x escapes can't be given to a tool: their bytes are no UTF-8; use the shell`)
	}
}
