package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
)

// forkPoint is what a fork takes over from its parent.
type forkPoint struct {
	parent record.Parent
	// history is the conversation, view how requests show it, and notice what the
	// model is told with the next message.
	history []loop.Message
	view    *loop.View
	notice  boundary.Text
	// skills are the parent's, including which ones it has loaded.
	skills *skill.Set
	// loaded are the MCP tools that the parent has loaded.
	loaded []tools.Name
	// changed is the parent's tracker with the frozen changes, nil if there can be
	// none.
	changed tracker.Forker
}

// isContinued reports whether a session takes over a conversation.
func (p *forkPoint) isContinued() bool { return p != nil && len(p.history) > 0 }

// reasonFork is why commands end when their session is forked.
const reasonFork = "the session was forked"

// Fork makes n sessions that continue from here, with the conversation so far and the
// workspace as it is now, which is not copied. The parent continues too. It must be between
// turns. Its background commands end and its sandbox is taken down; parent and forks each
// start a sandbox when a call needs it. Their models are told.
//
// Forks have the parent's options, and count their budgets separately. They have no approval
// broker, and only the hooks Hint, Notify, Force and OnFork, unless [Hooks.OnFork] sets more.
// They don't apply their changes when they end, use frozen caches, and each have a directory
// below the state directory, which Close closes. The workspace must stay open until all of
// them are closed. Cancelling ctx is as for [Open].
//
// In copy mode, the changes are collected first. It is an error if some can't be collected,
// for example because commands made a file unreadable.
//
// Errors wrap [sandbox.ErrUnsupported] in bind mode, and [ErrBusy] or [ErrOver] like
// [Session.Start]. After an error there are no forks, and the parent can still be used.
func (s *Session) Fork(ctx context.Context, n int) ([]*Session, error) {
	if n < 1 {
		return nil, fmt.Errorf("fork session: %d forks", n)
	}
	if !s.opts.isOverlay() {
		return nil, fmt.Errorf("fork session: %w: the workspace is in %s mode, and only overlay and copy have layers that can be shared", sandbox.ErrUnsupported, s.opts.workspaceMode())
	}
	forks, err := s.openForks(ctx, n, reasonFork, s.opts.OnFork)
	if err != nil {
		return nil, fmt.Errorf("fork session: %w", err)
	}
	s.events.recordWarning(forkWarning(forks))
	return forks, nil
}

// openForks makes n forks of s, also in bind mode, where they share the workspace. reason is
// why the commands of s end. configure, which may be nil, changes the options of each fork.
func (s *Session) openForks(ctx context.Context, n int, reason string, configure func(number int, o *Options)) ([]*Session, error) {
	done, err := s.calls.exclude(s.turns.hold)
	if err != nil {
		return nil, err
	}
	defer done(s.turns.release)
	ended, resume, err := s.exec.Suspend(ctx, reason)
	if err != nil {
		return nil, err
	}
	defer resume()
	changed, ok := s.tracker.(tracker.Forker)
	if ok {
		if ok, err = changed.Freeze(ctx); err != nil {
			return nil, err
		}
	}
	if !ok { // there is nothing to share but the workspace
		changed = nil
	}
	point := &forkPoint{parent: s.asParent(), history: slices.Clip(slices.Clone(s.turns.history)), view: s.turns.view.Clone(), skills: s.skills.Clone(), loaded: s.loaded.Names(), changed: changed, notice: s.prompt.notice}
	if !s.sandbox.IsUntouched() && len(s.turns.history) > 0 {
		point.notice = forkNotice(ended)
		s.prompt.notice = point.notice
	}
	var forks []*Session
	for i := range n {
		fork, err := openFork(ctx, s.opts, point, i, configure)
		if err != nil {
			for _, f := range forks {
				f.Close()
				err = errors.Join(err, sessiondir.DiscardChanges(f.dir, ""))
			}
			return nil, err
		}
		forks = append(forks, fork)
	}
	s.opts.startOnDemand = true // no turn runs that reads it
	return forks, nil
}

// asParent returns the position in the session's records at which it is forked.
func (s *Session) asParent() record.Parent {
	p := record.Parent{Session: s.opts.Dir.Session}
	if ended := s.turns.ended; ended != nil {
		p.Turn = ended.ID
	}
	p.Seq, p.SHA256 = s.rec.Head()
	return p
}

// openFork opens one fork of a session with options o. configure, which may be nil, changes
// the fork's options.
func openFork(ctx context.Context, o Options, point *forkPoint, number int, configure func(number int, o *Options)) (_ *Session, err error) {
	state := filepath.Dir(filepath.Dir(o.Dir.Path))
	if o.Dir, err = sessiondir.Create(state, o.Secrets); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Dir.Close())
		}
	}()
	o.Broker, o.Apply, o.Removed, o.Warnings = nil, false, nil, nil
	o.Hooks = Hooks{Hint: o.Hint, Notify: o.Notify, Force: o.Force, OnFork: o.OnFork, writeTrace: o.writeTrace, syncTrace: o.syncTrace}
	if o.Caches.enabled() {
		o.Caches.Use = caches.Frozen
	}
	o.from, o.startOnDemand = point, true
	o.CheckOptions = CheckOptions{}
	if configure != nil {
		configure(number, &o)
	}
	return Open(ctx, o)
}

// forkNotice tells a model that its session was forked, which ended a number of commands.
func forkNotice(ended int) boundary.Text {
	text := boundary.Text("The session was continued in a fresh sandbox on the same workspace: files of the workspace are kept; /tmp, the home directory and running programs are gone.")
	if ended > 0 {
		text += boundary.Sprintf(" %s in the background ended.", boundary.Text(limits.FormatCount(ended, "command")))
	}
	return text + " Handles of earlier commands and their kept output may not be known any more."
}

// forkWarning names the forks of a session.
func forkWarning(forks []*Session) string {
	return fmt.Sprintf("the session was forked into %s, from %s on; its sandbox starts again when a call needs it",
		limits.FormatCount(len(forks), "session"), forks[0].opts.Dir.Session)
}
