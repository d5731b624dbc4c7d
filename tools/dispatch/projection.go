package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

const (
	// projectTimeout bounds making a diff. Reading a file takes milliseconds.
	projectTimeout = 10 * time.Second
	// unaskedTimeout bounds making a diff that only delays its call.
	unaskedTimeout = time.Second
)

// projectCalls makes the diffs of calls, a few at a time: each may hold two
// versions of a large file.
func (r *round) projectCalls(all []*pending) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, r.d.opts.Concurrency)
	for _, p := range all {
		if p.confirm.shown.State != "" {
			continue // the decider has seen it
		}
		slots <- struct{}{}
		wg.Go(func() {
			p.confirm.shown = r.projectCall(p, projectTimeout)
			<-slots
		})
	}
	wg.Wait()
}

// projectCall returns a call's projection, or an empty one if its tool makes none.
// If it fails, State says so. It does not wait for a tool that hangs; Close does.
func (r *round) projectCall(p *pending, timeout time.Duration) tools.Projection {
	if r.ctx.Err() != nil {
		return tools.Projection{} // a closed dispatcher starts nothing
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, timeout, errors.New("projection timed out"))
	defer cancel()
	call := p.call
	call.Input, call.Delta = bytes.Clone(p.call.Input), func(string, string) {}
	done := make(chan tools.Projection, 1)
	r.d.running.Go(func() {
		var shown tools.Projection
		err := errNoReturn
		defer func() {
			if err != nil {
				r.logProjectionError(call, err)
				shown = tools.Projection{State: cmp.Or(shown.State, tools.Unprojected)}
			}
			done <- shown
		}()
		if broken := callGuarded(func() {
			projector, ok := p.tool.New().(tools.Projector)
			if !ok {
				err = nil
				return
			}
			shown, err = projector.Project(ctx, &call)
		}); broken != nil {
			err = broken
		}
	})
	select {
	case shown := <-done:
		return shown
	case <-ctx.Done():
		return tools.Projection{State: tools.Unprojected}
	}
}

func (r *round) logProjectionError(call tools.Call, err error) {
	level := zap.DebugLevel
	if _, broken := errors.AsType[*panicError](err); broken || errors.Is(err, errNoReturn) {
		level = zap.ErrorLevel
	}
	r.d.log.Log(level, "no projection", zap.String("call", call.ID), zap.String("tool", string(call.Name)), zap.Error(err))
}

// isStillAsShown reports whether a call would still change only what was shown.
func (r *round) isStillAsShown(p *pending) bool {
	if p.confirm == nil || p.confirm.shown.State == "" {
		return true
	}
	p.ticket.announceStart() // others don't wait for the file system
	p.call.Projected = p.confirm.shown.State
	return r.projectCall(p, projectTimeout).State == p.confirm.shown.State || r.ctx.Err() != nil
}

// projectUnasked returns the diff, safe for display, of a call that is about to
// change files although no person saw the diff, or "".
func (r *round) projectUnasked(p *pending) string {
	if p.tool.Definition.Class != tools.ClassWrite || p.confirm != nil && p.confirm.by == approval.ByUser {
		return ""
	}
	diff, _ := tools.DisplayLines(r.projectCall(p, unaskedTimeout).Diff)
	return tools.Elide(diff, maxUnaskedDiff)
}
