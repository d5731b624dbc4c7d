package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

type applier interface {
	// Apply makes one change. Its error is a *workspace.Error if the model can fix
	// it, and wraps tools.ErrSandboxLost or tools.ErrSandboxStart if the run can't
	// go on.
	Apply(ctx context.Context, op workspace.Op) (workspace.Change, error)
}

// Options configures the tools.
type Options struct {
	// Reader is the host's view of the workspace. It is required.
	Reader workspace.View
	// Applier makes changes. If it is nil, the tools that need it are left out.
	Applier applier
	// MarkPatch, if not nil, is called with the displayed paths of a patch of more
	// than one change, before the first change. If it fails, nothing is changed.
	// unmark is called when the patch is done or undone, or when the model goes on
	// and reads what is left of it; but not if the sandbox is lost, which cuts the
	// patch off.
	MarkPatch func(paths []string) (unmark func(), err error)
	// Logger defaults to none.
	Logger *zap.Logger
}

// Factories returns the tools' factories in the order to offer them. It fails if
// Options.Reader is nil.
func Factories(o Options) ([]tools.Factory, error) {
	if o.Reader == nil {
		return nil, errors.New("make file tools: no reader")
	}
	r := &readers{o.Reader, cmp.Or(o.Logger, zap.NewNop())}
	all := []tools.Factory{
		readFactory(o, readFileDefinition(), r.readFile),
		readFactory(o, listDirDefinition(), r.listDir),
		readFactory(o, globDefinition(), r.glob),
		readFactory(o, grepDefinition(), r.grep),
	}
	if o.Applier != nil {
		all = append(all,
			changeFactory(o, workspace.OpWrite, writeFileDefinition()),
			changeFactory(o, workspace.OpPatch, patchFileDefinition()),
			changeFactory(o, workspace.OpDelete, deleteFileDefinition()),
			applyPatch(o))
	}
	return all, nil
}

// readers are the read-only tools.
type readers struct {
	view workspace.View
	log  *zap.Logger
}

// readFactory returns the factory of a read-only tool. Errors of run that the model
// can fix become a [tools.Error].
func readFactory[In any](o Options, def tools.Definition, run func(context.Context, In) (tools.Output, error)) tools.Factory {
	def.Class, def.Runs, def.EnabledByDefault = tools.ClassRead, tools.PlaceHost, true
	return tools.NewTool(def, func(ctx context.Context, _ *tools.Call, in In) (tools.Output, error) {
		out, err := run(ctx, in)
		return out, toolError(ctx, o.Reader, err)
	})
}

// toolError turns a workspace error into a tools.Error. It denies a path that leads
// outside; the model can fix any other. For a missing file it names one with a
// similar name.
func toolError(ctx context.Context, r workspace.View, err error) error {
	e, ok := errors.AsType[*workspace.Error](err)
	if !ok {
		return err
	}
	fail := &tools.Error{Class: tools.ErrorExecution, Reason: string(e.Kind), Message: e.Error(), Visible: true, Err: err}
	switch e.Kind {
	case workspace.KindEscape:
		fail.Class, fail.Reason = tools.ErrorPermissionDenied, "workspace_escape"
	case workspace.KindNotFound:
		fail.Message += similarName(ctx, r, e.Path)
	case workspace.KindTimeout:
		fail.Class = tools.ErrorTimeout
	}
	return fail
}

// refuse returns an error that the model can fix.
func refuse(reason, format string, args ...any) error {
	return &tools.Error{Class: tools.ErrorExecution, Reason: reason, Message: fmt.Sprintf(format, args...), Visible: true}
}

func textOutput(s string) tools.Output {
	return tools.Output{Content: []tools.Block{{Text: s}}, Success: true}
}
