package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/terminal"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server/internal/outputlog"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// Bounds of one sandbox's commands.
const (
	maxRunning = 16
	// maxKeyed bounds the commands with a key. Their results are kept as long
	// as the sandbox.
	maxKeyed = 1000
	// keptStream bounds the kept bytes of one stream, keptOutput of all
	// streams.
	keptStream = 16 << 20
	keptOutput = 512 << 20
)

// commands are a sandbox's running commands, and all its commands with a key.
// It is safe for concurrent use.
type commands struct {
	mu      sync.Mutex
	store   *outputlog.Store // nil before the first command
	byID    map[string]*command
	byKey   map[string]*command // by the client's label and the key
	running int
}

type command struct {
	id string
	// key is the key in commands.byKey, or "". sum is the hash of its request.
	key string
	sum [sha256.Size]byte
	// log keeps the output, or terminal if the command has one.
	log      *outputlog.Log
	terminal *terminal.Terminal
	cancel   context.CancelCauseFunc
	// done is closed once result and err are set.
	done   chan struct{}
	result runner.UserResult
	err    error
}

// requestSum hashes a request's body: equal requests have equal hashes.
func requestSum(body any) ([sha256.Size]byte, error) {
	text, err := json.Marshal(body)
	return sha256.Sum256(text), err
}

// labelledKey binds a request's key to its client. Without a key it returns "".
func labelledKey(key string, from client) string {
	if key == "" {
		return ""
	}
	return from.label + " " + key
}

func keyReused() *Problem {
	return newProblem(http.StatusUnprocessableEntity, "key_reused", "another request had this Idempotency-Key", "Send a new key, or the same request")
}

// startCommand starts a command, or returns the one that its key started. If
// the client resumes the events of a command, startCommand starts none. A new
// command gets the terminal, which may be nil.
func (s *session) startCommand(in NewExec, key string, resumes bool, from client, on *terminal.Terminal) (*command, error) {
	command, problem := in.userCommand()
	if problem != nil {
		return nil, problem
	}
	if most := s.commandTime(); most > 0 && command.Timeout > most {
		return nil, newProblem(http.StatusUnprocessableEntity, "refused", fmt.Sprintf("timeout_seconds is above the sandbox's limit of %v", most), "Ask for less, or leave it out")
	}
	sum, err := requestSum(struct {
		NewExec
		Terminal bool
	}{in, on != nil})
	if err != nil {
		return nil, s.internalProblem("start command", err)
	}
	s.mu.Lock() // until follows has it: finishClose waits for follows
	defer s.mu.Unlock()
	if s.ending {
		return nil, sandboxEnded(s.id)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c, joined, err := s.sandbox.commands.addCommand(filepath.Join(s.dir, sessiondir.OutputDir), labelledKey(key, from), sum, resumes, cancel, on)
	if err != nil {
		cancel(nil)
		return nil, s.asProblem("keep output", err)
	}
	if joined {
		cancel(nil)
		return c, nil
	}
	command.ID, command.Client = c.id, from.name()
	if on == nil {
		command.Stdout, command.Stderr = c.log.Writer(0), c.log.Writer(1)
	} else {
		command.Stdin, command.Stdout, command.Terminal = on, on, on.ForCommand()
		command.Env = append([]string{"TERM=xterm"}, command.Env...)
		context.AfterFunc(ctx, on.Hurry)
	}
	s.follows.Go(func() {
		defer cancel(nil)
		c.result, c.err = s.run.Exec(ctx, command)
		if e, ok := errors.AsType[*runner.UserCommandError](c.err); ok && e.Kind == runner.FaultOther && (ctx.Err() != nil || s.isEnding()) {
			c.result, c.err = runner.UserResult{Status: sandbox.ExitStatus{Code: -1, Cancelled: true}}, nil // it was cancelled before it began
		}
		if on == nil {
			if err := c.log.End(); err != nil {
				s.log.Warn("the output of a command is not kept whole", zap.String("session", s.id), zap.String("exec", c.id), zap.Error(err))
			}
		}
		s.sandbox.commands.endCommand()
		close(c.done)
		if on != nil {
			on.End()
		}
	})
	return c, nil
}

// commandTime returns the time limit of a command, or 0.
func (s *session) commandTime() time.Duration {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	return time.Duration(s.facts.Resources.CommandTimeMS) * time.Millisecond
}

// addCommand adds a command that is about to run, or returns the one with the
// key. dir is for its output.
func (x *commands) addCommand(dir, key string, sum [sha256.Size]byte, resumes bool, cancel context.CancelCauseFunc, on *terminal.Terminal) (_ *command, joined bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.byKey[key]; c != nil && key != "" {
		if c.sum != sum {
			return nil, false, keyReused()
		}
		return c, true, nil
	}
	if resumes {
		return nil, false, badEventID()
	}
	if x.store == nil && on == nil {
		if x.store, err = outputlog.NewStore(dir, keptStream, keptOutput); err != nil {
			return nil, false, err
		}
	}
	switch {
	case x.running >= maxRunning:
		p := newProblem(http.StatusTooManyRequests, "commands", fmt.Sprintf("%d commands are running in this sandbox, the maximum", maxRunning), "Wait for one, or cancel one")
		p.retryAfter = "1"
		return nil, false, p
	case key != "" && len(x.byKey) >= maxKeyed:
		return nil, false, newProblem(http.StatusTooManyRequests, "keys", fmt.Sprintf("this sandbox keeps the results of %d commands with a key, the maximum", maxKeyed), "Start another sandbox, or leave the key out")
	case key != "" && on == nil && x.store.Room() < outputlog.Streams*keptStream:
		return nil, false, newProblem(http.StatusInsufficientStorage, "output", "this sandbox keeps the maximum output of commands with a key", "Start another sandbox, or leave the key out")
	}
	c := &command{id: record.NewID("exe"), key: key, sum: sum, terminal: on, cancel: cancel, done: make(chan struct{})}
	if on == nil {
		if c.log, err = x.store.Create(c.id); err != nil {
			return nil, false, err
		}
	}
	x.running++
	x.byID[c.id] = c
	if key != "" {
		x.byKey[key] = c
	}
	return c, false, nil
}

func (x *commands) endCommand() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running--
}

// releaseCommand is called when a client leaves a command. It cancels a command that
// no other client can join, and forgets it once it has ended.
func (x *commands) releaseCommand(c *command) {
	if c.key == "" {
		c.cancel(errClientGone)
		<-c.done
		x.forgetCommand(c)
	}
}

// forgetCommand removes a command without a key, and its output.
func (x *commands) forgetCommand(c *command) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, c.id)
	if c.log != nil {
		_ = c.log.Remove() // the end of the sandbox tries again
	}
}

// findCommand returns a command that is running or has a key, or nil.
func (x *commands) findCommand(id string) *command {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byID[id]
}

func (x *commands) listRunning() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := []string{}
	for _, c := range slices.SortedFunc(maps.Values(x.byID), func(a, b *command) int { return strings.Compare(a.id, b.id) }) {
		select {
		case <-c.done:
		default:
			ids = append(ids, c.id)
		}
	}
	return ids
}

// removeOutput removes all kept output. Call it once no command is running.
func (x *commands) removeOutput() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.store == nil {
		return nil
	}
	return x.store.Remove()
}

// end describes how the command ended. Call it after done is closed.
func (c *command) end() ExecEnd {
	var stdout, stderr StreamSize
	if c.terminal != nil {
		stdout.Bytes = c.terminal.Total()
	} else {
		st, _ := c.log.State()
		stdout, stderr = StreamSize{st.Total[0], st.Kept[0] < st.Total[0]}, StreamSize{st.Total[1], st.Kept[1] < st.Total[1]}
	}
	r := c.result
	return ExecEnd{
		Exec: c.id, Status: r.Status.Code, Signal: r.Status.Signal, TimedOut: r.Status.TimedOut, OOMKilled: r.Status.OOMKilled,
		Cancelled: r.Status.Cancelled, PIDsLimit: r.PIDsLimitHit, Full: r.Full, Killed: r.Killed, Left: r.Left, Stdout: stdout, Stderr: stderr,
	}
}
