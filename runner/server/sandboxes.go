package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// NewSandbox is a client's request for a sandbox without a model. Fields that
// are left out are taken from the server's configuration.
type NewSandbox struct {
	Workspace string   `json:"workspace,omitempty" maxLength:"4096" doc:"directory that commands work on: absolute, or relative to the only root; it must be at or below a root of the server. Without one, the sandbox has an empty directory, which is removed with it"`
	Title     string   `json:"title,omitempty" maxLength:"400" doc:"a short title for lists"`
	Mode      string   `json:"mode,omitempty" enum:"bind,overlay,copy" doc:"how the workspace is mounted; overlay and copy leave it untouched until changes are applied"`
	Image     string   `json:"image,omitempty" maxLength:"200" doc:"root filesystem: a name that the server's configuration offers"`
	Mounts    []string `json:"mounts,omitempty" maxItems:"100" nullable:"false" doc:"further directories: names that the server's configuration offers"`
	Resources string   `json:"resources,omitempty" maxLength:"200" doc:"memory, processors and other limits: a name that the server's configuration offers"`
	TTL       int64    `json:"ttl_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"how long the sandbox stays without a command; by default an hour"`
}

// Sandbox is a sandbox without a model, live or ended. It is also a session
// with the same ID.
type Sandbox struct {
	ID        string    `json:"id" example:"ses_01KAJ6N8YV8QZ6W4T0F6P3E9RC"`
	State     State     `json:"state" enum:"idle,running,closing,ended,interrupted,elsewhere" doc:"running while a command runs"`
	Title     string    `json:"title"`
	Begun     time.Time `json:"begun"`
	Client    string    `json:"client,omitempty" doc:"who started it, as in its records" example:"http:alice"`
	Workspace string    `json:"workspace,omitempty" doc:"absent if it has a temporary directory"`
	Mode      string    `json:"mode" doc:"bind, overlay or copy"`
	Backend   string    `json:"backend"`
	Image     string    `json:"image"`
	TTL       int64     `json:"ttl_seconds,omitempty" doc:"how long it stays without a command; absent if it is not live here"`
	Seq       int64     `json:"seq" doc:"the number of the last record"`
	Reason    string    `json:"stop_reason,omitempty" doc:"how an ended sandbox ended"`
	Commands  []string  `json:"commands,omitempty" nullable:"false" doc:"ids of the running commands"`
	// Only answers about one sandbox have the rest.
	Problem     *Failure             `json:"problem,omitempty" doc:"what went wrong with an ended sandbox"`
	Attestation *sandbox.Attestation `json:"attestation,omitempty" doc:"of the container"`
	Restarts    int                  `json:"restarts,omitempty" doc:"how often a new container replaced one that was lost"`
	Resources   *record.Resources    `json:"resources,omitempty"`
	Left        []string             `json:"left,omitempty" nullable:"false" doc:"what could not be removed"`
}

// SandboxList is a page of live sandboxes, the newest first.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes" nullable:"false"`
	Next      string    `json:"next,omitempty" doc:"send it as before to get the next page; absent on the last"`
}

// SandboxPath is the path of a sandbox.
type SandboxPath struct {
	ID string `path:"id" doc:"a sandbox's id"`
}

// liveSandbox is a live session without a model.
type liveSandbox struct {
	watch    *runner.CommandWatch
	commands *commands
	ttl      time.Duration
	// end cancels ctx when the session begins to close.
	ctx context.Context //nolint:containedctx // of the goroutine that waits for the ttl
	end context.CancelCauseFunc
}

type sandboxesAPI struct{ sessions *registry }

func (a sandboxesAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sandboxes", "startSandbox", "Start a sandbox without a model",
		"Answers when it can run commands. It ends with DELETE, after its time to live without a command, and with the server. It counts as a session, and is a session with the model none. The same request with the same Idempotency-Key gets the same sandbox until that has ended, even if the first connection was lost. Another body with the same key is 422.",
		http.StatusCreated, 409, 422, 429, 503, 507),
		func(ctx context.Context, in *struct {
			Key  string `header:"Idempotency-Key" maxLength:"128" pattern:"^[!-~]*$" doc:"the same key gets the same sandbox as long as it is live"`
			Body NewSandbox
		},
		) (*created[Sandbox], error) {
			live, err := a.startOnce(ctx, in.Body, in.Key, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			return &created[Sandbox]{"/sandboxes/" + live.id, a.sandboxView(live.sessionView(true), live)}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sandboxes", "listSandboxes", "List live sandboxes",
		"This server's live sandboxes, the newest first. GET /sessions also lists the others.", http.StatusOK),
		func(_ context.Context, in *listInput) (*body[SandboxList], error) {
			return &body[SandboxList]{a.listSandboxes(in.Limit, in.Before)}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sandboxes/{id}", "getSandbox", "Look at a sandbox", "Live or ended.", http.StatusOK, 404),
		func(_ context.Context, in *SandboxPath) (*body[Sandbox], error) {
			v, err := a.viewSandbox(in.ID)
			return &body[Sandbox]{v}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodDelete, "/sandboxes/{id}", "endSandbox", "End a sandbox",
		"Cancels its commands, removes its container, and answers when that is done. Its records and the changes of an overlay are kept. Ending an ended sandbox does nothing.",
		http.StatusOK, 404, 409),
		func(ctx context.Context, in *SandboxPath) (*body[Sandbox], error) {
			v, err := a.endSandbox(ctx, in.ID)
			if !clientOf(ctx).hasRole(RoleRead) {
				v = Sandbox{ID: v.ID, State: v.State, Client: v.Client}
			}
			return &body[Sandbox]{v}, err
		})
}

// sandboxKeys maps the client's label and key to the starts of live sandboxes.
// It is safe for concurrent use.
type sandboxKeys struct {
	mu    sync.Mutex
	byKey map[string]*sandboxStart
}

type sandboxStart struct {
	sum [sha256.Size]byte
	// ready is closed once live or err is set.
	ready chan struct{}
	live  *session
	err   error
}

// addStart returns the start with the key, and whether it is new.
func (k *sandboxKeys) addStart(key string, sum [sha256.Size]byte) (_ *sandboxStart, first bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.byKey[key]
	switch {
	case s == nil:
		s = &sandboxStart{sum: sum, ready: make(chan struct{})}
		k.byKey[key] = s
		return s, true, nil
	case s.sum != sum:
		return nil, false, keyReused()
	}
	return s, false, nil
}

func (k *sandboxKeys) removeKey(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byKey, key)
}

// startOnce starts a sandbox, or returns the one that its key started.
func (a sandboxesAPI) startOnce(ctx context.Context, in NewSandbox, key string, from client) (*session, error) {
	if key == "" {
		return a.startSandbox(ctx, in, from, func() {})
	}
	key = labelledKey(key, from)
	sum, err := requestSum(in)
	if err != nil {
		return nil, a.sessions.internalProblem("start sandbox", err)
	}
	s, first, err := a.sessions.keys.addStart(key, sum)
	if err != nil {
		return nil, err
	}
	if first {
		a.runStart(context.WithoutCancel(ctx), s, in, key, from)
	} else if err := waitClosed(ctx, s.ready); err != nil {
		return nil, err
	}
	if s.err == nil && s.live.isEnding() {
		p := newProblem(http.StatusConflict, "closing", "sandbox "+s.live.id+", which has this Idempotency-Key, is ending", "Try again to start another one")
		p.retryAfter = "1"
		return nil, p
	}
	return s.live, s.err
}

// runStart starts a key's sandbox, whether or not its client still waits. If
// the sandbox doesn't start, and once it has ended, the key is free again.
func (a sandboxesAPI) runStart(ctx context.Context, s *sandboxStart, in NewSandbox, key string, from client) {
	s.err = newProblem(http.StatusInternalServerError, "internal", "the server failed", "Its log has the cause") // if it panics
	defer func() {
		if s.err != nil {
			a.sessions.keys.removeKey(key)
		}
		close(s.ready)
	}()
	s.live, s.err = a.startSandbox(ctx, in, from, func() { a.sessions.keys.removeKey(key) })
}

// startSandbox starts a sandbox and waits until it can run commands. ended is
// called when it has ended.
func (a sandboxesAPI) startSandbox(ctx context.Context, in NewSandbox, from client, ended func()) (*session, error) {
	ttl := time.Duration(in.TTL) * time.Second
	switch most := a.sessions.opts.MaxSandboxTTL; {
	case ttl > most:
		return nil, newProblem(http.StatusUnprocessableEntity, "refused", fmt.Sprintf("ttl_seconds is above the server's limit of %d", int64(most/time.Second)), "Ask for less, or leave it out")
	case ttl == 0:
		ttl = min(DefaultSandboxTTL, most)
	}
	live := newSession(a.sessions.diagnostics, in.Title, from)
	live.prepare = func(ctx context.Context) (runner.Options, func(), error) {
		return a.sessions.opts.PrepareSandbox(ctx, in)
	}
	live.sandbox = &liveSandbox{
		watch: runner.NewCommandWatch(), ttl: ttl,
		commands: &commands{byID: map[string]*command{}, byKey: map[string]*command{}},
	}
	live.sandbox.ctx, live.sandbox.end = context.WithCancelCause(context.Background())
	live.onClosed = ended
	if err := a.sessions.startLive(ctx, live); err != nil {
		live.sandbox.end(nil)
		return nil, err
	}
	// The first command starts the sandbox, and shows that it runs commands.
	r, err := live.run.Exec(ctx, runner.UserCommand{Argv: []string{sandbox.GuestPath, "version"}})
	if err == nil && r.Status == (sandbox.ExitStatus{}) {
		a.sessions.log.Info("sandbox started", zap.String("session", live.id), zap.String("client", from.label), zap.String("workspace", displayTitle(in.Workspace)))
		return live, nil
	}
	live.close("")
	<-live.closed
	switch {
	case a.sessions.ctx.Err() != nil:
		return nil, serverStopping()
	case err != nil:
		return nil, live.commandProblem(err)
	case r.Status.Cancelled: // by DELETE, or the client is gone
		return nil, sandboxEnded(live.id)
	}
	return nil, a.sessions.internalProblem("start sandbox", fmt.Errorf("its first command ended with %+v", r.Status))
}

func (a sandboxesAPI) listSandboxes(limit int, before string) SandboxList {
	out := SandboxList{Sandboxes: []Sandbox{}}
	all := slices.DeleteFunc(a.sessions.listLive(), func(live *session) bool {
		return live.sandbox == nil || before != "" && live.id >= before
	})
	slices.SortFunc(all, func(x, y *session) int { return strings.Compare(y.id, x.id) }) // IDs sort by time
	for _, live := range all {
		if len(out.Sandboxes) == limit {
			out.Next = out.Sandboxes[limit-1].ID
			break
		}
		out.Sandboxes = append(out.Sandboxes, a.sandboxView(live.sessionView(false), live))
	}
	return out
}

func (a sandboxesAPI) viewSandbox(id string) (Sandbox, error) {
	live := a.sessions.liveSession(id)
	v, err := a.sessions.viewSession(id, true)
	if p, ok := errors.AsType[*Problem](err); ok && p.Status == http.StatusNotFound || err == nil && v.Model != (loop.ModelInfo{}).String() {
		return Sandbox{}, newProblem(http.StatusNotFound, "no_sandbox", "there is no such sandbox", "GET /sandboxes lists them")
	}
	if err != nil {
		return Sandbox{}, err
	}
	return a.sandboxView(v, live), nil
}

// requireSandbox returns a live sandbox, or a problem if it has ended or
// doesn't exist.
func (a sandboxesAPI) requireSandbox(id string) (*session, error) {
	if live := a.sessions.liveSession(id); live != nil && live.sandbox != nil {
		return live, nil
	}
	switch v, err := a.viewSandbox(id); {
	case err != nil:
		return nil, err
	case v.State == StateElsewhere:
		return nil, elsewhere(id)
	}
	return nil, sandboxEnded(id)
}

func (a sandboxesAPI) endSandbox(ctx context.Context, id string) (Sandbox, error) {
	if live := a.sessions.liveSession(id); live != nil && live.sandbox != nil {
		live.close(clientOf(ctx).name())
		if err := waitClosed(ctx, live.closed); err != nil {
			return Sandbox{}, err
		}
	}
	v, err := a.viewSandbox(id)
	if err == nil && v.State == StateElsewhere {
		err = elsewhere(id)
	}
	return v, err
}

// sandboxView makes a sandbox's view from its session's; live is nil if it is
// not live here.
func (a sandboxesAPI) sandboxView(v Session, live *session) Sandbox {
	out := Sandbox{
		ID: v.ID, State: v.State, Title: v.Title, Begun: v.Begun, Client: v.Client, Mode: v.Mode, Backend: v.Backend, Image: v.Image,
		Seq: v.Seq, Reason: v.Reason, Problem: v.Problem, Attestation: v.Attestation, Restarts: v.Restarts, Resources: v.Resources, Left: v.Left,
	}
	if v.Workspace != sessiondir.WorkspacePath(a.sessions.opts.StateDir, v.ID) {
		out.Workspace = v.Workspace
	}
	if live != nil {
		out.TTL, out.Commands = int64(live.sandbox.ttl/time.Second), live.sandbox.commands.listRunning()
	}
	return out
}

// commandProblem returns the problem of a command that could not run to its
// end.
func (s *session) commandProblem(err error) *Problem {
	e, ok := errors.AsType[*runner.UserCommandError](err)
	switch {
	case errors.Is(err, runner.ErrOver):
		return sandboxEnded(s.id)
	case !ok || prepareStatuses[string(e.Kind)] == 0:
		return s.internalProblem("run command", err)
	case e.Kind == runner.FaultCommand: // it is about the request
		return fromProblem(http.StatusUnprocessableEntity, "command", record.Problem{Cause: e.Cause, Hint: e.Hint})
	case e.Kind == runner.FaultDisk: // the cause says if it is the host's disk or a directory of the sandbox
		return fromProblem(http.StatusInsufficientStorage, "disk", record.Problem{Cause: e.Cause, Hint: e.Hint})
	}
	return s.prepareProblem("run command in "+s.id, &PrepareError{Code: string(e.Kind), Err: err})
}

func sandboxEnded(id string) *Problem {
	return newProblem(http.StatusGone, "ended", "sandbox "+id+" has ended", "Start another one; GET /sessions/{id} still has its records and changes")
}

func elsewhere(id string) *Problem {
	return newProblem(http.StatusConflict, "elsewhere", "sandbox "+id+" belongs to another process", "Use that process")
}
