package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// apiVersion is the version of the API, not of the program.
const apiVersion = "1"

const apiText = `Sessions of agents in sandboxes: start one, give it messages, follow its records, answer what it asks, look at what it changed.

Every request but GET /healthz bears a token: Authorization: Bearer TOKEN. The security entry of each operation names the role that its token needs: read, run, approve or admin; admin includes the others. Errors are application/problem+json (RFC 9457); code is a stable word.`

// SessionPath is the path of a session.
type SessionPath struct {
	ID string `path:"id" doc:"a session's id"`
}

// TurnPath is the path of a turn.
type TurnPath struct {
	SessionPath
	Turn string `path:"turn" doc:"a turn's id"`
}

// body is a JSON response.
type body[T any] struct{ Body T }

// registerRoutes adds the operations to mux and returns the OpenAPI document.
func (s *Server) registerRoutes(mux *http.ServeMux) ([]byte, error) {
	config := huma.DefaultConfig("Caisson", apiVersion)
	config.Info.Description = apiText
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", "" // the first is served below, the others load scripts of other sites
	config.CreateHooks = nil                                             // no $schema in answers
	config.Formats = map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()}
	config.Transformers = []huma.Transformer{asOwnProblem}
	config.RejectUnknownQueryParameters = true
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	api := humago.New(mux, config)
	a := operations{s, api}
	a.registerSessions()
	a.registerTurns()
	a.registerConfirmations()
	a.registerStreams()
	a.registerChanges()
	if err := checkRoutes(api.OpenAPI(), routeRoles); err != nil {
		return nil, err
	}
	doc, err := a.marshalDocument()
	if err != nil {
		return nil, err
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		s.writeBytes(w, doc)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		s.writeBytes(w, []byte("ok\n"))
	})
	mux.Handle("GET /metrics", s.metrics.httpHandler())
	return doc, nil
}

func (s *Server) writeBytes(w io.Writer, text []byte) {
	if _, err := w.Write(text); err != nil {
		s.log.Debug("write answer", zap.Error(err))
	}
}

type operations struct {
	s   *Server
	api huma.API
}

// newOperation returns an operation whose errors are problems.
func (a operations) newOperation(method, path, id, summary, text string, status int, errors ...int) huma.Operation {
	schema := a.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	op := huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, Description: text, DefaultStatus: status,
		BodyReadTimeout: -1, MaxBodyBytes: maxBodyBytes + 1, // the guard has read and bounded it
		Responses: map[string]*huma.Response{},
		Security:  []map[string][]string{{"token": {string(routeRoles[method+" "+path])}}},
	}
	errors = append(errors, http.StatusForbidden)
	content := map[string]*huma.MediaType{problemType: {Schema: schema}}
	for _, status := range errors {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: content}
	}
	op.Responses["default"] = &huma.Response{Description: "Any other error", Content: content}
	return op
}

type listInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"sessions a page"`
	Before string `query:"before" doc:"the next of the page before"`
}

// SessionList is a page of sessions, the newest first.
type SessionList struct {
	Sessions []Session `json:"sessions" nullable:"false"`
	Next     string    `json:"next,omitempty" doc:"give it as before for the next page; absent on the last"`
}

func (a operations) registerSessions() {
	s := a.s
	huma.Register(a.api, a.newOperation(http.MethodPost, "/sessions", "startSession", "Start a session",
		"Its container is made when the first turn begins.", http.StatusCreated, 422, 429, 503),
		func(ctx context.Context, in *struct{ Body NewSession }) (*struct {
			Location string `header:"Location"`
			Body     Session
		}, error,
		) {
			live, err := s.startSession(ctx, in.Body, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			out := &struct {
				Location string `header:"Location"`
				Body     Session
			}{"/sessions/" + live.id, live.sessionView(true)}
			return out, nil
		})
	huma.Register(a.api, a.newOperation(http.MethodGet, "/sessions", "listSessions", "List sessions",
		"Live ones, ended ones, and those of other Caissons of the same user, on workspaces at or below a root, the newest first.", http.StatusOK),
		func(_ context.Context, in *listInput) (*body[SessionList], error) {
			list, err := s.listSessions(in.Limit, in.Before)
			return &body[SessionList]{list}, err
		})
	huma.Register(a.api, a.newOperation(http.MethodGet, "/sessions/{id}", "getSession", "Look at a session", "", http.StatusOK, 404),
		func(_ context.Context, in *SessionPath) (*body[Session], error) {
			v, err := s.viewSession(in.ID, true)
			return &body[Session]{v}, err
		})
	huma.Register(a.api, a.newOperation(http.MethodDelete, "/sessions/{id}", "endSession", "End a session",
		"Cancels its turn, removes its container, and answers when that is done. Its records and the changes of an overlay are kept. Ending an ended session does nothing.",
		http.StatusOK, 404, 409),
		func(ctx context.Context, in *SessionPath) (*body[Session], error) {
			v, err := s.endSession(ctx, in.ID)
			if !clientOf(ctx).hasRole(RoleRead) {
				v = Session{ID: v.ID, State: v.State, Client: v.Client}
			}
			return &body[Session]{v}, err
		})
}

func (s *Server) listSessions(limit int, before string) (SessionList, error) {
	out := SessionList{Sessions: []Session{}}
	names, err := s.listIDs()
	if err != nil {
		return out, s.internalProblem("list sessions", err)
	}
	for _, id := range names {
		if before != "" && id >= before {
			continue
		}
		if len(out.Sessions) == limit {
			out.Next = out.Sessions[limit-1].ID
			break
		}
		v, err := s.viewSession(id, false)
		if err != nil {
			continue // it has no trace yet, or is gone
		}
		out.Sessions = append(out.Sessions, v)
	}
	return out, nil
}

func (s *Server) viewSession(id string, whole bool) (Session, error) {
	if live := s.liveSession(id); live != nil {
		return live.sessionView(whole), nil
	}
	dir, err := s.findDir(id)
	if err != nil {
		return Session{}, err
	}
	p, err := readPast(id, dir)
	if err != nil {
		return Session{}, s.internalProblem("read session", err)
	}
	return p.sessionView(p.ended == nil && sessiondir.Lives(s.opts.StateDir, id), whole), nil
}

func (s *Server) endSession(ctx context.Context, id string) (Session, error) {
	if live := s.liveSession(id); live != nil {
		live.close(clientOf(ctx).name())
		if err := waitClosed(ctx, live.closed); err != nil {
			return Session{}, s.internalProblem("end session", err)
		}
	}
	v, err := s.viewSession(id, true)
	if err == nil && v.State == StateElsewhere {
		err = newProblem(http.StatusConflict, "elsewhere", "session "+id+" runs in another process", "End it there")
	}
	return v, err
}

// NewTurn is a user's message.
type NewTurn struct {
	Message string `json:"message" minLength:"1" maxLength:"1000000" doc:"what the user says"`
}

// Started is a turn that has begun.
type Started struct {
	Turn string `json:"turn"`
}

func (a operations) registerTurns() {
	s := a.s
	huma.Register(a.api, a.newOperation(http.MethodPost, "/sessions/{id}/turns", "startTurn", "Give a session a message",
		"Answers when the turn has begun; the events say how it goes.", http.StatusAccepted, 404, 409, 410),
		func(ctx context.Context, in *struct {
			SessionPath
			Body NewTurn
		},
		) (*struct {
			Location string `header:"Location"`
			Body     Started
		}, error,
		) {
			live, err := s.requireLive(in.ID)
			if err != nil {
				return nil, err
			}
			t, err := live.startTurn(in.Body.Message, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			return &struct {
				Location string `header:"Location"`
				Body     Started
			}{"/sessions/" + in.ID + "/turns/" + t.ID, Started{t.ID}}, nil
		})
	huma.Register(a.api, a.newOperation(http.MethodGet, "/sessions/{id}/turns/{turn}", "getTurn", "Look at a turn", "", http.StatusOK, 404),
		func(_ context.Context, in *TurnPath) (*body[Turn], error) {
			t, err := s.findTurn(in.ID, in.Turn)
			return &body[Turn]{t}, err
		})
	huma.Register(a.api, a.newOperation(http.MethodPost, "/sessions/{id}/turns/{turn}/cancel", "cancelTurn", "Cancel a turn",
		"Stops its commands and withdraws its questions. It answers at once; the turn ends when what runs has ended. Cancelling an ended turn does nothing.",
		http.StatusOK, 404),
		func(ctx context.Context, in *TurnPath) (*body[Turn], error) {
			if live := s.liveSession(in.ID); live != nil {
				live.cancelTurn(in.Turn, clientOf(ctx))
			}
			t, err := s.findTurn(in.ID, in.Turn)
			if !clientOf(ctx).hasRole(RoleRead) {
				t = Turn{ID: t.ID, State: t.State}
			}
			return &body[Turn]{t}, err
		})
}

// requireLive returns a live session, or a problem if it has ended or doesn't
// exist.
func (s *Server) requireLive(id string) (*session, error) {
	if live := s.liveSession(id); live != nil {
		return live, nil
	}
	v, err := s.viewSession(id, false)
	if err != nil {
		return nil, err
	}
	if v.State == StateElsewhere {
		return nil, newProblem(http.StatusConflict, "elsewhere", "session "+id+" runs in another process", "Speak to that")
	}
	return nil, sessionEnded(id)
}

var turnID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^trn_[0-9A-HJKMNP-TV-Z]{26}$`)
})

func (s *Server) findTurn(session, id string) (Turn, error) {
	none := newProblem(http.StatusNotFound, "no_turn", "the session has no such turn", "POST /sessions/{id}/turns gives its id")
	if live := s.liveSession(session); live != nil {
		if t, ok := live.turnView(id); ok {
			return t, nil
		}
	}
	dir, err := s.findDir(session)
	if err != nil {
		return Turn{}, err
	}
	if !turnID().MatchString(id) {
		return Turn{}, none
	}
	t, err := readTurn(dir, id)
	switch {
	case err != nil:
		return Turn{}, s.internalProblem("read turn", err)
	case t == nil:
		return Turn{}, none
	}
	if t.State == TurnInterrupted && sessiondir.Lives(s.opts.StateDir, session) {
		t.State = TurnRunning
	}
	return *t, nil
}

// turnView returns a turn that the session remembers.
func (s *session) turnView(id string) (Turn, bool) {
	s.mu.Lock()
	t := s.turns[id]
	s.mu.Unlock()
	if t == nil {
		return Turn{}, false
	}
	select {
	case <-t.Done():
		return turnView(t.Report()), true
	default:
		return Turn{ID: id, State: TurnRunning}, true
	}
}

// cancelTurn cancels a turn if it runs.
func (s *session) cancelTurn(id string, from client) {
	s.mu.Lock()
	t := s.turns[id]
	s.mu.Unlock()
	if t != nil {
		select {
		case <-t.Done(): // it changes nothing
			return
		default:
		}
		s.server.log.Info("turn cancelled", zap.String("session", s.id), zap.String("turn", id), zap.String("client", from.label))
		t.Cancel(&runner.CancelledByUser{Client: from.name()})
	}
}

// ConfirmationList lists the open confirmations of a session, the oldest first.
type ConfirmationList struct {
	Confirmations []Confirmation `json:"confirmations" nullable:"false"`
}

func (a operations) registerConfirmations() {
	s := a.s
	huma.Register(a.api, a.newOperation(http.MethodGet, "/sessions/{id}/confirmations", "listConfirmations", "What a session asks",
		"Those that wait for an answer; none once the session has ended.", http.StatusOK, 404),
		func(_ context.Context, in *SessionPath) (*body[ConfirmationList], error) {
			out := &body[ConfirmationList]{ConfirmationList{[]Confirmation{}}}
			if live := s.liveSession(in.ID); live != nil {
				out.Body.Confirmations = live.pendingConfirmations()
				return out, nil
			}
			_, err := s.findDir(in.ID)
			return out, err
		})
	huma.Register(a.api, a.newOperation(http.MethodPost, "/sessions/{id}/turns/{turn}/confirmations/{request}", "answerConfirmation", "Answer a confirmation",
		"The first answer counts, whoever gives it, and is recorded before this answers. The scope always, and allowing a tool that requires an administrator, need the role admin. 409 has the decision that stands; 410 says that the session has ended, and with it all that it asked.",
		http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *struct {
			TurnPath
			Request string `path:"request" doc:"a confirmation's id"`
			Body    Answer
		},
		) (*body[Resolution], error) {
			live, err := s.requireLive(in.ID)
			if err != nil {
				return nil, s.logStray(ctx, in.ID, in.Request, err)
			}
			got, err := live.answerConfirmation(ctx, in.Turn, in.Request, in.Body, clientOf(ctx))
			return &body[Resolution]{got}, err
		})
}

// At most strayMost answers to no live session are logged per strayEvery, so
// that a client that guesses IDs can't fill the log.
const (
	strayEvery = time.Minute
	strayMost  = 100
)

// logStray logs an answer to a session that has ended or doesn't exist, and so
// has no trace to record it in. It returns err.
func (s *Server) logStray(ctx context.Context, session, confirmation string, err error) error {
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		return err
	}
	s.metrics.late.Inc()
	s.strays.Warn("an answer to no live session", zap.String("why", p.Code), zap.String("session", displayTitle(session)),
		zap.String("confirmation", displayTitle(confirmation)), zap.String("client", clientOf(ctx).label))
	return err
}

func (a operations) registerStreams() {
	s := a.s
	op := a.newOperation(http.MethodGet, "/sessions/{id}/events", "followSession", "Follow a session's records",
		`Server-sent events. A record is an event without a name, its id the record's seq, its data one line of JSON: the Record schema, as in trace.jsonl.
Events named "delta" (the Delta schema) are live output; they have no id, and are never sent again. The event "end" (StreamEnd) is the last: the session has ended. Comments keep the connection alive.
A client that comes back with Last-Event-ID, or ?after=, gets exactly what came behind it. One that is too slow is disconnected, and can come back. 204 says that there is nothing behind, and will not be.`,
		http.StatusOK, 400, 404, 429)
	schemas := a.api.OpenAPI().Components.Schemas
	op.Responses["200"] = &huma.Response{Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}}}
	op.Responses["204"] = &huma.Response{Description: "The session has ended, and the client has all of it"}
	for name, t := range map[string]reflect.Type{"Record": reflect.TypeFor[record.Record](), "Delta": reflect.TypeFor[Delta](), "StreamEnd": reflect.TypeFor[StreamEnd]()} {
		schemas.Schema(t, true, name)
	}
	huma.Register(a.api, op, s.streamEvents)

	op = a.newOperation(http.MethodGet, "/sessions/{id}/values/{name}", "getValue", "A record's long value",
		`A value that was too long for its record's line, by the last part of its "path" in the record's "spilled" list.`, http.StatusOK, 404)
	op.Responses["200"] = bytesResponse("application/octet-stream")
	huma.Register(a.api, op, func(_ context.Context, in *struct {
		SessionPath
		Name string `path:"name" doc:"the file's name"`
	},
	) (*huma.StreamResponse, error) {
		dir, err := s.findDir(in.ID)
		if err != nil {
			return nil, err
		}
		return s.openValue(dir, in.Name)
	})
}

func bytesResponse(kind string) *huma.Response {
	return &huma.Response{Description: "The bytes", Content: map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}}
}

var valueName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
})

func (s *Server) openValue(dir, name string) (*huma.StreamResponse, error) {
	none := newProblem(http.StatusNotFound, "no_value", "the session has no such value", `The "spilled" list of a record names them`)
	if !valueName().MatchString(name) {
		return nil, none
	}
	root, err := os.OpenRoot(filepath.Join(dir, "spill"))
	if err != nil {
		return nil, none
	}
	defer func() { _ = root.Close() }() // only read
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, none
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, none
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer func() { _ = file.Close() }() // only read
		c.SetHeader("Content-Type", "application/octet-stream")
		c.SetHeader("Content-Length", strconv.FormatInt(info.Size(), 10))
		if _, err := io.CopyN(c.BodyWriter(), file, info.Size()); err != nil {
			s.log.Debug("write value", zap.Error(err))
		}
	}}, nil
}

func (a operations) registerChanges() {
	s := a.s
	huma.Register(a.api, a.newOperation(http.MethodGet, "/sessions/{id}/diff", "getDiff", "What a session changed",
		"So far, for a live one: what it writes meanwhile may be in it or not.", http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *SessionPath) (*body[Diff], error) {
			d, _, err := s.readDiff(ctx, in.ID)
			return &body[Diff]{d}, err
		})
	op := a.newOperation(http.MethodGet, "/sessions/{id}/patch", "getPatch", "What a session changed, as a patch",
		"The very bytes of a unified diff that git apply and patch -p1 take.", http.StatusOK, 404, 409, 410)
	op.Responses["200"] = bytesResponse("text/x-diff")
	huma.Register(a.api, op, func(ctx context.Context, in *SessionPath) (*huma.StreamResponse, error) {
		_, patch, err := s.readDiff(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			c.SetHeader("Content-Type", "text/x-diff")
			s.writeBytes(c.BodyWriter(), []byte(patch))
		}}, nil
	})
	huma.Register(a.api, a.newOperation(http.MethodPost, "/sessions/{id}/apply", "applyChanges", "Bring in what an overlay session changed",
		"A live session must be idle, and is ended first. A file that changed in the workspace since the session began is a conflict: nothing is applied then, and 409 lists them, unless skip_conflicts says to apply the rest. Symlinks that lead out of the workspace are left out unless with_symlinks_out is set. What a git of the host would obey is never applied here.",
		http.StatusOK, 404, 409, 410, 422),
		func(ctx context.Context, in *struct {
			SessionPath
			Body ApplyRequest
		},
		) (*body[Applied], error) {
			out, err := s.applyChanges(ctx, in.ID, in.Body)
			return &body[Applied]{out}, err
		})
}

// checkRoutes reports an operation of the document for which a table of roles
// has no entry.
func checkRoutes(doc *huma.OpenAPI, roles map[string]Role) error {
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPut: item.Put, http.MethodPost: item.Post, http.MethodDelete: item.Delete,
			http.MethodOptions: item.Options, http.MethodHead: item.Head, http.MethodPatch: item.Patch, http.MethodTrace: item.Trace,
		} {
			if _, listed := roles[method+" "+path]; op != nil && !listed {
				return fmt.Errorf("no role is set for %s %s", method, path)
			}
		}
	}
	return nil
}

// marshalDocument returns the OpenAPI document, indented.
func (a operations) marshalDocument() ([]byte, error) {
	schemas := a.api.OpenAPI().Components.Schemas.Map()
	for _, name := range []string{"ErrorModel", "ErrorDetail"} {
		delete(schemas, name) // huma's own, which no answer has
	}
	// Answers may get further fields; requests may not have any.
	requests := []string{"Answer", "ApplyRequest", "NewSession", "NewTurn", "SessionLimits"}
	for name, schema := range schemas {
		if !slices.Contains(requests, name) && schema.AdditionalProperties == false {
			schema.AdditionalProperties = nil
		}
	}
	text, err := json.Marshal(a.api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
