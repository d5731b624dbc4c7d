package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// searchTime bounds a search; what was found until then is the result. It is
// well below the dispatcher's 60 s for a tool that reads.
const searchTime = 20 * time.Second

// errSearchTime is the cause of a search's end by searchTime.
var errSearchTime = errors.New("search took too long")

// search walks over the files that a glob or a grep looks at.
type search struct {
	reader workspace.View
	// start is the folder or file, relative to the workspace, cleaned.
	start string
	// ignored includes what .gitignore leaves out, and .git.
	ignored bool
}

func newSearch(r workspace.View, start string, ignored bool) (*search, error) {
	if start == "" {
		start = "."
	}
	rel, err := r.Relative(start)
	if err != nil {
		return nil, err
	}
	return &search{reader: r, start: rel, ignored: ignored}, nil
}

// searchSummary is the line that people see of a search: what is looked for
// before where.
func searchSummary(raw json.RawMessage) string {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	if in.Path == "" || in.Path == "." {
		return in.Pattern
	}
	return in.Pattern + " in " + in.Path
}

// outcome says how a search ended.
type outcome struct {
	workspace.Walked
	// late says that it was stopped by its time.
	late bool
}

// files calls visit for everything that is no folder, in the order of paths.
// The name is relative to the start, or the last name where that is a file.
func (s *search) files(ctx context.Context, visit func(ctx context.Context, e workspace.Entry, name string) error) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, searchTime, errSearchTime)
	defer cancel()
	rules := &ignores{off: true}
	if !s.ignored {
		rules = newIgnores(ctx, s.reader, s.start)
	}
	walked, err := s.reader.Walk(ctx, s.start, workspace.WalkOptions{}, func(e workspace.Entry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		isDir := e.Type == workspace.TypeDir
		if e.Depth > 0 && rules.leavesOut(e.Path, isDir) {
			return skip(isDir)
		}
		if isDir {
			if !rules.off {
				rules.enter(ctx, e.Path)
			}
			return nil
		}
		return visit(ctx, e, s.name(e))
	})
	if errors.Is(err, errSearchTime) {
		return outcome{walked, true}, nil
	}
	return outcome{walked, false}, err
}

func skip(isDir bool) error {
	if isDir {
		return workspace.SkipDir
	}
	return nil
}

func (s *search) name(e workspace.Entry) string {
	switch {
	case e.Depth == 0:
		return path.Base(e.Path)
	case s.start == ".":
		return e.Path
	}
	return strings.TrimPrefix(e.Path, s.start+"/")
}

// explain notes what a search did not see.
func (o outcome) explain(out *tools.Output) {
	if o.late {
		out.Truncated = true
		note(out, fmt.Sprintf("stopped after %v: name a folder below, or a narrower pattern", searchTime))
	}
	if o.Truncated {
		out.Truncated = true
		note(out, "the folder holds more entries than one search looks at: name a folder below")
	}
	if len(o.Incomplete) > 0 {
		out.Truncated = true
		note(out, "not searched: "+strings.Join(shownAll(o.Incomplete), ", "))
	}
}
