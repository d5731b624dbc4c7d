package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// roleToken returns the token of a client with the given roles.
func roleToken(label string, roles ...Role) Token {
	return Token{Label: label, Value: label + strings.Repeat("-0123456789", 3), Roles: roles}
}

// roleTokens returns a token for each role, one with the default roles, and an
// administrator's.
func roleTokens() []Token {
	return []Token{
		roleToken("reader", RoleRead), roleToken("runner", RoleRun), roleToken("approver", RoleApprove), roleToken("boss", RoleAdmin),
		roleToken("default"),
		{Label: "alice", Value: aliceToken, Roles: []Role{RoleAdmin}},
	}
}

// roleProblem reports whether an answer refuses a request because of a missing
// role.
func roleProblem(a answer) bool {
	return a.status == http.StatusForbidden && strings.Contains(a.text, `"code":"role"`)
}

// TestEveryRouteRequiresARole sends a request to each route, in the OpenAPI
// document or not, without a token, with an unknown one, and with each role's
// token. Exactly the routes in the expected table serve it.
func TestEveryRouteRequiresARole(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.Tokens = roleTokens() })
	want := map[string]string{ // who is served, besides boss
		"POST /sessions": "runner default", "GET /sessions": "reader default", "GET /sessions/{id}": "reader default",
		"DELETE /sessions/{id}": "runner default", "POST /sessions/{id}/resume": "runner default", "POST /sessions/{id}/turns": "runner default", "GET /sessions/{id}/turns/{turn}": "reader default",
		"POST /sessions/{id}/turns/{turn}/cancel": "runner default", "GET /sessions/{id}/confirmations": "reader default",
		"POST /sessions/{id}/turns/{turn}/confirmations/{request}": "approver", "GET /sessions/{id}/events": "reader default",
		"GET /sessions/{id}/skills": "reader default", "GET /sessions/{id}/skills/{name}": "reader default",
		"GET /sessions/{id}/values/{name}": "reader default", "GET /sessions/{id}/diff": "reader default", "GET /sessions/{id}/patch": "reader default",
		"POST /sandboxes": "runner default", "GET /sandboxes": "reader default", "GET /sandboxes/{id}": "reader default", "DELETE /sandboxes/{id}": "runner default",
		"PUT /sandboxes/{id}/files": "runner default", "GET /sandboxes/{id}/files": "runner default",
		"POST /sandboxes/{id}/exec": "runner default", "DELETE /sandboxes/{id}/exec/{exec}": "runner default", "GET /sandboxes/{id}/terminal": "runner default",
		"POST /sessions/{id}/apply": "", "GET /metrics": "reader default", "POST /signins": "reader default", "GET /openapi.json": "reader runner approver default",
		"GET /healthz": "reader runner approver default",
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	w.get("/openapi.json").requireStatus(t, 200).decodeInto(t, &doc)
	routes := []string{"GET /metrics", "GET /openapi.json", "GET /healthz"}
	for path, operations := range doc.Paths {
		for method, op := range operations {
			route := strings.ToUpper(method) + " " + path
			routes = append(routes, route)
			if len(op.Security) != 1 || len(op.Security[0]["token"]) != 1 || Role(op.Security[0]["token"][0]) != routeRoles[route] {
				t.Errorf("%s documents the security %v, and requires %s", route, op.Security, routeRoles[route])
			}
		}
	}
	for _, route := range routes {
		served, listed := want[route]
		if !listed {
			t.Errorf("%s has no expected role", route)
			continue
		}
		method, path, _ := strings.Cut(route, " ")
		path = strings.NewReplacer("{id}", "ses_00000000000000000000000000", "{turn}", "trn_x", "{request}", strings.Repeat("0", 32), "{name}", "x").Replace(path)
		methods := []string{method}
		if method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
		for _, token := range roleTokens()[:5] {
			allowed := token.Label == "boss" || slices.Contains(strings.Fields(served), token.Label)
			for _, m := range methods {
				body := map[bool]string{true: "{}", false: ""}[m == http.MethodPost]
				a := w.do(token.Value, m, path, body)
				refused := roleProblem(a) || m == http.MethodHead && a.status == http.StatusForbidden
				if refused == allowed || a.status == http.StatusUnauthorized {
					t.Errorf("%s %s with the token %s: %d %s, want it served: %v", m, path, token.Label, a.status, a.text, allowed)
				}
			}
		}
		for _, m := range methods {
			for _, token := range []string{"", strings.Repeat("x", 40)} {
				body := map[bool]string{true: "{}", false: ""}[m == http.MethodPost]
				if a := w.do(token, m, path, body); (a.status != http.StatusUnauthorized) != (route == "GET /healthz") {
					t.Errorf("%s %s with the token %q: %d %s", m, path, token, a.status, a.text)
				}
			}
		}
	}
	if len(routes) != len(want) || len(routeRoles) != len(routes) {
		t.Errorf("%d routes, %d expected, %d in the table", len(routes), len(want), len(routeRoles))
	}
}

// TestRouteWithoutRoleIsRefused is the control of the table.
func TestRouteWithoutRoleIsRefused(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /forgotten", func(http.ResponseWriter, *http.Request) { t.Error("it was served") })
	mux.HandleFunc("GET /sessions", func(http.ResponseWriter, *http.Request) {})
	h := w.server.guard.protectRoutes(mux)
	for path, want := range map[string]int{"/forgotten": 403, "/sessions": 200} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "localhost"
		r.Header.Set("Authorization", "Bearer "+aliceToken)
		got := &deadlineRecorder{httptest.NewRecorder()}
		if h.ServeHTTP(got, r); got.Code != want {
			t.Errorf("%s: %d, want %d", path, got.Code, want)
		}
	}
	doc := &huma.OpenAPI{Paths: map[string]*huma.PathItem{"/sessions": {Get: &huma.Operation{}}, "/forgotten": {Put: &huma.Operation{}}}}
	if err := checkRoutes(doc, routeRoles); err == nil || !strings.Contains(err.Error(), "PUT /forgotten") {
		t.Errorf("a document with a route without a role: %v", err)
	}
}

// TestRolesOfAnswers answers one question with each role: only approve and
// admin count, and only admin permanently.
func TestRolesOfAnswers(t *testing.T) {
	grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
	w := newTestEnv(t, "  - calls: [{tool: write_file, input: {path: a, content: x}}]\n  - text: Done.\n", func(o *Options) { o.Tokens = roleTokens() })
	w.opts = func(o *runner.Options) { o.Grants = grants }
	post := func(label, path, body string) answer { return w.do(roleToken(label).Value, "POST", path, body) }
	// No session so far: reader can't start one.
	create := fmt.Sprintf(`{"workspace":%q}`, w.dir)
	post("reader", "/sessions", create).requireProblem(t, 403, "role")
	post("approver", "/sessions", create).requireProblem(t, 403, "role")
	var s Session
	post("runner", "/sessions", create).requireStatus(t, 201).decodeInto(t, &s)
	if s.Client != "http:runner" {
		t.Errorf("started by %q", s.Client)
	}
	ask := func() (string, Confirmation) {
		var id Session
		post("default", "/sessions", create).requireStatus(t, 201).decodeInto(t, &id)
		f := w.followEvents(id.ID, "")
		turn := w.startTurn(id.ID, "go")
		return "/sessions/" + id.ID + "/turns/" + turn, w.waitForConfirmation(id.ID, f)
	}
	turn, c := ask()
	if !slices.Contains(c.Scopes, approval.ScopeAlways) {
		t.Fatalf("offered %v", c.Scopes)
	}
	at := turn + "/confirmations/" + c.ID
	const once, session, always = `{"decision":"allow"}`, `{"decision":"allow","scope":"session"}`, `{"decision":"allow","scope":"always"}`
	for _, label := range []string{"reader", "runner", "default"} {
		for _, body := range []string{once, session, always, `{"decision":"deny"}`} {
			post(label, at, body).requireProblem(t, 403, "role")
		}
	}
	post("approver", at, always).requireProblem(t, 403, "role")
	post("approver", at, `{"decision":"deny","scope":"always"}`).requireProblem(t, 403, "role")
	if got := len(w.backend.commands()); got != 0 {
		t.Fatal("it ran")
	}
	post("approver", at, session).requireStatus(t, 200)
	if list, err := grants.List(); err != nil || len(list) != 0 {
		t.Errorf("stored %v, %v", list, err)
	}
	// Control: admin can.
	turn, c = ask()
	post("boss", turn+"/confirmations/"+c.ID, always).requireStatus(t, 200)
	if list, err := grants.List(); err != nil || len(list) != 1 {
		t.Errorf("stored %v, %v", list, err)
	}
	// A client with only the role run does not get the fields that need read.
	var cancelled Turn
	post("runner", turn+"/cancel", "").requireStatus(t, 200).decodeInto(t, &cancelled)
	if cancelled != (Turn{ID: cancelled.ID, State: cancelled.State}) || cancelled.ID == "" {
		t.Errorf("told %+v", cancelled)
	}
}

// TestRecordsNameTheActingUser does one thing after another with different
// tokens, and finds each in its record.
func TestRecordsNameTheActingUser(t *testing.T) {
	w := newTestEnv(t, asks+"  - text: Again.\n", func(o *Options) { o.Tokens = roleTokens() })
	post := func(label, path, body string) answer { return w.do(roleToken(label).Value, "POST", path, body) }
	var s Session
	post("runner", "/sessions", fmt.Sprintf(`{"workspace":%q,"mode":"overlay"}`, w.dir)).requireStatus(t, 201).decodeInto(t, &s)
	f := w.followEvents(s.ID, "")
	var turn Started
	post("default", "/sessions/"+s.ID+"/turns", `{"message":"go"}`).requireStatus(t, 202).decodeInto(t, &turn)
	c := w.waitForConfirmation(s.ID, f)
	post("approver", "/sessions/"+s.ID+"/turns/"+turn.Turn+"/confirmations/"+c.ID, `{"decision":"deny","scope":"always"}`).requireStatus(t, 403)
	post("runner", "/sessions/"+s.ID+"/turns/"+turn.Turn+"/cancel", "").requireStatus(t, 200)
	w.waitForTurn(s.ID, turn.Turn)
	w.do(roleToken("boss").Value, "DELETE", "/sessions/"+s.ID, "").requireStatus(t, 200)
	want := map[record.Kind]string{
		record.KindSessionCreated: "http:runner", record.KindTurnStarted: "http:default", record.KindMessage: "http:default",
		record.KindConfirmationAttempted: "http:approver", record.KindTurnCancelled: "http:runner", record.KindSessionEnded: "http:boss",
	}
	for _, r := range w.trace(s.ID) {
		who, listed := want[r.Kind]
		if !listed || r.Kind == record.KindMessage && r.Actor != record.ActorUser {
			continue
		}
		delete(want, r.Kind)
		var p struct{ Client, By, Outcome string }
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if p.Client != who && p.By != who {
			t.Errorf("%s does not name %s: %s", r.Kind, who, r.Payload)
		}
		if r.Kind == record.KindConfirmationAttempted && p.Outcome != string(approval.AttemptForbidden) {
			t.Errorf("the refused answer has the outcome %s", p.Outcome)
		}
		if r.Kind == record.KindTurnCancelled && p.By != "user" {
			t.Errorf("cancelled by %s", p.By)
		}
	}
	if len(want) > 0 {
		t.Errorf("no record of %v", want)
	}
}

// adminTool asks, and may require an administrator.
type adminTool struct{ requires bool }

func (a adminTool) Definition() tools.Definition {
	return tools.Definition{
		Name: "probe", Description: "Probes.", Class: tools.ClassNone, Runs: tools.PlaceHost, RequiresAdmin: a.requires,
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
	}
}

func (adminTool) Execute(context.Context, *tools.Call) (tools.Output, error) {
	return tools.Output{}, nil
}

// TestAdminToolsAreAnsweredByAdmins asks about a tool that requires an
// administrator.
func TestAdminToolsAreAnsweredByAdmins(t *testing.T) {
	for _, requires := range []bool{true, false} {
		c := newConfirmations(nil)
		d, err := dispatch.New(dispatch.Options{
			Broker: c.broker, Allow: func(tools.Definition) bool { return true }, Emit: func(dispatch.Event) error { return nil }, ConfirmTimeout: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Register(func() tools.Tool { return &adminTool{requires} }); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: "probe", Input: json.RawMessage("{}")}})
		}()
		for len(c.broker.Pending()) == 0 {
			time.Sleep(time.Millisecond)
		}
		id := c.broker.Pending()[0].ID
		for _, test := range []struct {
			answer approval.Answer
			want   bool
		}{
			{approval.Answer{Decision: approval.DecisionAllow}, requires},
			{approval.Answer{Decision: approval.DecisionDeny}, false},
			{approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeAlways}, true},
		} {
			if got := c.needsAdmin(id, test.answer); got != test.want {
				t.Errorf("requires an administrator %v, answer %+v: needs one %v", requires, test.answer, got)
			}
		}
		if _, err := c.broker.Answer(t.Context(), id, approval.Answer{Decision: approval.DecisionDeny}, "test"); err != nil {
			t.Error(err)
		}
		<-done
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestRolesDoNotIncludeEachOther(t *testing.T) {
	for _, have := range allRoles() {
		for _, need := range allRoles() {
			if got, want := (client{roles: []Role{have}}).hasRole(need), have == need || have == RoleAdmin; got != want {
				t.Errorf("%s has %s: %v", have, need, got)
			}
		}
	}
	if c := (client{}); slices.ContainsFunc(append(allRoles(), roleAny, ""), c.hasRole) {
		t.Error("no client has a role")
	}
	if (client{roles: []Role{RoleAdmin}}).hasRole("") {
		t.Error("admin has the role of a route that is not listed")
	}
	var buf bytes.Buffer
	if err := writeJSON(&buf, client{label: "x"}.lacksRole(RoleAdmin)); err != nil || !strings.Contains(buf.String(), "admin") {
		t.Errorf("%s, %v", &buf, err)
	}
}
