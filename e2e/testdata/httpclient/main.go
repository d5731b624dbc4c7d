// Command httpclient drives a session with a client that a generator made from
// /openapi.json: api is that client.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"

	"httpclient/api"
)

var (
	ctx    = context.Background()
	client *api.ClientWithResponses
	// last is the number of the last record, as the server gave it.
	last int64
)

func main() {
	bearer := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("CONTROL_TOKEN"))
		return nil
	}
	var err error
	client, err = api.NewClientWithResponses(os.Args[1], api.WithRequestEditorFn(bearer))
	check(err)

	mode := api.NewSessionModeOverlay
	started, err := client.StartSessionWithResponse(ctx, api.NewSession{Workspace: os.Args[2], Mode: &mode})
	check(err)
	want(started.StatusCode(), 201, started.Body)
	session := started.JSON201.Id

	// The first turn asks twice: one is allowed, the other denied.
	first := turn(session, "make it")
	asked := 0
	follow(session, func(kind string) bool {
		if kind == "tool.confirmation_requested" {
			decision := []api.AnswerDecision{api.AnswerDecisionAllow, api.AnswerDecisionDeny}[asked]
			asked++
			answer(session, first, decision)
		}
		return kind == "turn.completed"
	})
	got, err := client.GetTurnWithResponse(ctx, session, first)
	check(err)
	fmt.Println("asked", asked, "answered", *got.JSON200.Answer)

	// The second is cancelled while its second call runs.
	second := turn(session, "wait for ever")
	calls := 0
	follow(session, func(kind string) bool {
		switch kind {
		case "tool.confirmation_requested":
			answer(session, second, api.AnswerDecisionAllow)
		case "tool.called":
			if calls++; calls < 2 {
				break
			}
			for range 2 { // it is idempotent
				cancelled, err := client.CancelTurnWithResponse(ctx, session, second)
				check(err)
				want(cancelled.StatusCode(), 200, cancelled.Body)
			}
		}
		return kind == "turn.cancelled"
	})

	diff, err := client.GetDiffWithResponse(ctx, session)
	check(err)
	want(diff.StatusCode(), 200, diff.Body)
	for _, f := range diff.JSON200.Files {
		fmt.Println("changed", f.Path, f.Change)
	}
	applied, err := client.ApplyChangesWithResponse(ctx, session, api.ApplyRequest{})
	check(err)
	want(applied.StatusCode(), 200, applied.Body)
	fmt.Println("applied", len(applied.JSON200.Applied), applied.JSON200.Changes)
	follow(session, func(kind string) bool { return kind == "session.ended" })
	more := "more"
	gone, err := client.StartTurnWithResponse(ctx, session, nil, api.NewTurn{Message: &more})
	check(err)
	want(gone.StatusCode(), 410, gone.Body)
	fmt.Println("refused", gone.ApplicationproblemJSON410.Code)
	fmt.Println("records", last)
}

func turn(session, message string) string {
	t, err := client.StartTurnWithResponse(ctx, session, nil, api.NewTurn{Message: &message})
	check(err)
	want(t.StatusCode(), 202, t.Body)
	return t.JSON202.Turn
}

// answer answers what is asked, and finds a contrary answer refused.
func answer(session, turn string, decision api.AnswerDecision) {
	list, err := client.ListConfirmationsWithResponse(ctx, session)
	check(err)
	for _, c := range list.JSON200.Confirmations {
		a, err := client.AnswerConfirmationWithResponse(ctx, session, turn, c.Id, api.Answer{Decision: decision})
		check(err)
		want(a.StatusCode(), 200, a.Body)
		again, err := client.AnswerConfirmationWithResponse(ctx, session, turn, c.Id, api.Answer{Decision: api.AnswerDecisionAllow})
		check(err)
		want(again.StatusCode(), 409, again.Body)
		fmt.Println("decided", c.ToolName, a.JSON200.Decision, "again", again.ApplicationproblemJSON409.Resolution.Decision)
	}
}

// follow reads records until done says so, over as many connections as it takes.
func follow(session string, done func(kind string) bool) {
	for connections := 1; ; connections++ {
		id := fmt.Sprint(last)
		res, err := client.FollowSession(ctx, session, &api.FollowSessionParams{LastEventID: &id})
		check(err)
		want(res.StatusCode, 200, nil)
		over := read(res, done)
		res.Body.Close()
		if over {
			fmt.Println("connections", connections)
			return
		}
	}
}

func read(res *http.Response, done func(kind string) bool) bool {
	lines := bufio.NewReader(res.Body)
	numbered := false
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return false // cut
		}
		switch field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); field {
		case "":
			numbered = false
		case "id":
			numbered = true
		case "data":
			if !numbered {
				continue // live output, or the end
			}
			var r api.Record
			check(json.Unmarshal([]byte(value), &r))
			if r.Seq != last+1 {
				fail("record %d came behind %d", r.Seq, last)
			}
			last = r.Seq
			if done(r.Kind) {
				return true
			}
		}
	}
}

func want(got, status int, body []byte) {
	if got != status {
		fail("status %d, want %d: %s", got, status, body)
	}
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
