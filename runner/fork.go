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

// forkPoint is where a session begins that is a fork: what it has of its parent.
type forkPoint struct {
	parent record.Parent
	// history is the conversation, view how requests show it, and notice what the
	// model is told with the next message.
	history []loop.Message
	view    *loop.View
	notice  boundary.Text
	// skills are those of the parent, as it has loaded them.
	skills *skill.Set
	// loaded are the tools of servers that the parent has loaded.
	loaded []tools.Name
	// changed is the parent's tracker with the frozen changes, nil if there can be
	// none.
	changed tracker.Forker
}

// isContinued reports whether a session goes on with a conversation.
func (p *forkPoint) isContinued() bool { return p != nil && len(p.history) > 0 }

// reasonFork is why commands end when their session is forked.
const reasonFork = "the session was forked"

// Fork makes n sessions that go on from here: with the conversation so far and the
// workspace as it is now, which is not copied. The parent goes on too. It must be
// between turns. Its commands in the background end and its sandbox is taken down; a
// session starts a sandbox when a call needs it. Models are told.
//
// Forks have the options of the parent with budgets, an approval broker and hooks of
// their own: no broker, and no hooks but Hint, Notify and Force, unless [Hooks.OnFork]
// sets them. They don't apply their changes at their end, use frozen caches, and have
// a directory of their own below the state directory, which Close closes. The
// workspace must stay open until all are closed. Cancelling ctx is as for [Open].
//
// A copy is collected before. Files that can't be brought back, such as those that
// commands closed to themselves, would be missing then: that is an error.
//
// Its errors wrap [sandbox.ErrUnsupported] in bind mode, and [ErrBusy] or [ErrOver] as
// those of [Session.Start]. The parent is usable after an error, and there are no
// forks.
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

// openForks makes n sessions that go on from s, whose commands end for a reason, with
// options that configure changes. In bind mode they share the workspace.
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

// asParent returns the place in the records of a session at which it is forked.
func (s *Session) asParent() record.Parent {
	p := record.Parent{Session: s.opts.Dir.Session}
	if ended := s.turns.ended; ended != nil {
		p.Turn = ended.ID
	}
	p.Seq, p.SHA256 = s.rec.Head()
	return p
}

// openFork opens the fork with a number of a session with options. configure, which may be nil,
// changes them.
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

// forkNotice tells a model of the fork of its session, which ended commands.
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
