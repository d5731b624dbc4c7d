package dispatch

import (
	"errors"
	"path"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// nameScope checks a path by its name alone: no ".." that leaves, absolute
// only at or below one of the workspace's roots.
func nameScope(roots ...string) func(string) error {
	return func(p string) error {
		if strings.ContainsRune(p, 0) {
			return &workspace.Error{Kind: workspace.KindInvalid, Path: p, Detail: "a path can't hold a NUL"}
		}
		clean := path.Clean(p)
		if !path.IsAbs(clean) && clean != ".." && !strings.HasPrefix(clean, "../") {
			return nil
		}
		for _, root := range roots {
			if root != "" && within(clean, root) {
				return nil
			}
		}
		return &workspace.Error{Kind: workspace.KindEscape, Path: p, Detail: "outside the workspace"}
	}
}

// scopeFailure turns the answer of a scope checker into the failure of the
// call, or nil if the tool itself will report the problem with the path.
func scopeFailure(err error) *tools.Error {
	if err == nil {
		return nil
	}
	var we *workspace.Error
	if !errors.As(err, &we) {
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "scope_unknown", Err: err}
	}
	switch we.Kind {
	case workspace.KindEscape:
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "workspace_escape", Message: we.Error(), Visible: true, Err: err}
	case workspace.KindInvalid:
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "invalid_path", Message: we.Error(), Visible: true, Err: err}
	}
	return nil
}
