package dispatch

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

var exampleQuestion = HostQuestion{CallID: "a", Host: "xn--bcher-kva.example", Display: "bücher.example", Port: 443, Command: "npm ci", Rule: "tls://xn--bcher-kva.example"}

func TestAskHost(t *testing.T) {
	var shown []approval.Confirmation
	answer := approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}
	ask := approver(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		shown = append(shown, c)
		return answer, nil
	})
	rec := &recorder{}
	grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask), Grants: grants, Workspace: "/w"})
	asked := func(q HostQuestion) approval.Resolution {
		t.Helper()
		r, err := d.AskHost(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := asked(exampleQuestion); r.Decision != approval.DecisionAllow || r.Scope != approval.ScopeOnce || r.By != approval.ByUser {
		t.Errorf("once: %+v", r)
	}
	c := shown[0]
	for _, want := range []string{"xn--bcher-kva.example", "bücher.example", "443", "npm ci", "tls://xn--bcher-kva.example"} {
		if !strings.Contains(c.Input, want) {
			t.Errorf("the question does not have %q: %s", want, c.Input)
		}
	}
	if c.Phrase != "xn--bcher-kva.example:443" || c.Class != tools.ClassNetwork || len(c.Notices) != 1 || len(c.Scopes) != 2 {
		t.Errorf("%+v", c)
	}
	answer.Scope = approval.ScopeAlways
	if r := asked(exampleQuestion); r.Scope != approval.ScopeAlways || len(shown) != 2 {
		t.Errorf("always: %+v after %d questions", r, len(shown))
	}
	if r := asked(exampleQuestion); r.By != approval.ByGrant || r.Decision != approval.DecisionAllow || len(shown) != 2 {
		t.Errorf("an answer that was stored: %+v after %d questions", r, len(shown))
	}
	private := exampleQuestion
	private.Addr = "10.1.2.3"
	answer.Scope = approval.ScopeOnce
	if r := asked(private); r.By != approval.ByUser || len(shown) != 3 || !strings.HasSuffix(shown[2].Summary, ":443 at the private address 10.1.2.3") {
		t.Errorf("the stored answer covers an address: %+v, %+v", r, shown[len(shown)-1])
	}
	shown = shown[:2]
	other := exampleQuestion
	other.Port = 8443
	answer = approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeAlways, Reason: "use the mirror"}
	if r := asked(other); r.Decision != approval.DecisionDeny || r.Reason != "use the mirror" || len(shown) != 3 {
		t.Errorf("the stored answer covers another port: %+v", r)
	}
	if r := asked(other); r.By != approval.ByGrant || r.Decision != approval.DecisionDeny || len(shown) != 3 {
		t.Errorf("a stored denial: %+v", r)
	}
	wantEvents(t, rec, "a", "requested", "resolved allow by user", "requested", "resolved allow by user", "resolved allow by grant", "requested", "resolved allow by user",
		"requested", "resolved deny by user", "resolved deny by grant")
	elsewhere := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "default"), Grants: grants, Workspace: "/other", OnPrompt: OnPromptAllow})
	if r, err := elsewhere.AskHost(t.Context(), exampleQuestion); err != nil || r.Decision != approval.DecisionDeny || r.By != approval.ByOnPrompt {
		t.Errorf("without anyone to ask, in another workspace: %+v, %v", r, err)
	}
}

func TestAskHostEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := approver(func(ctx context.Context, _ approval.Confirmation) (approval.Answer, error) {
			<-ctx.Done()
			return approval.Answer{}, context.Cause(ctx)
		})
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(silent), ConfirmTimeout: time.Minute, Workspace: "/w"})
		if r, err := d.AskHost(t.Context(), exampleQuestion); err != nil || r.Decision != approval.DecisionTimeout {
			t.Errorf("after its time: %+v, %v", r, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if r, err := d.AskHost(ctx, exampleQuestion); err != nil || r.Decision != approval.DecisionDeny || r.By != approval.ByCancel || time.Since(begun) != time.Second {
			t.Errorf("when the command ends: %+v, %v", r, err)
		}
		// An answer that can't be recorded allows nothing.
		failing := &recorder{fail: func(ev Event) error {
			if _, ok := ev.(ConfirmationResolved); ok {
				return errors.New("disk full")
			}
			return nil
		}}
		grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		d = newDispatcher(t, failing, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeAlways)), Grants: grants, Workspace: "/w"})
		if _, err := d.AskHost(t.Context(), exampleQuestion); !errors.Is(err, tools.ErrRecord) {
			t.Errorf("without a record: %v", err)
		}
		if list, err := grants.List(); err != nil || len(list) != 0 {
			t.Errorf("an answer without a record is stored: %v, %v", list, err)
		}
	})
}
