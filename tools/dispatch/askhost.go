package dispatch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// HostQuestion asks about a host and port that a command wants to connect to and
// that no rule covers. Host is canonical.
type HostQuestion struct {
	CallID string `json:"-"`
	Host   string `json:"host"`
	// Display is the Unicode form of Host, or "" if it is the same.
	Display string `json:"in_unicode,omitempty"`
	Port    uint16 `json:"port"`
	// Addr is set if the host is allowed but has this address in a private network.
	Addr    string `json:"private_address,omitempty"`
	Command string `json:"command"`
	// Rule is the rule that allowing amounts to.
	Rule string `json:"allowing_means"`
}

// phrase returns the text that a lasting answer is bound to.
func (q HostQuestion) phrase() string {
	text := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	if q.Addr != "" {
		text += " at the private address " + q.Addr
	}
	return text
}

// AskHost returns the stored answer about a host, or asks the decider and then a person.
// The scope is once or always; if a decider rules on hosts, an allow is returned as once,
// so that it sees the next command too. If ctx ends, it denies, perhaps without a record.
// If nobody can be asked, it also denies, whatever OnPrompt says: nobody has seen a call
// that names the host. An error means that a record could not be written, or that the
// decider failed.
func (d *Dispatcher) AskHost(ctx context.Context, q HostQuestion) (approval.Resolution, error) {
	r, err := d.askHost(ctx, q)
	if d.opts.Decider.CoversHosts() && r.Decision == approval.DecisionAllow {
		r.Scope = approval.ScopeOnce
	}
	return r, err
}

func (d *Dispatcher) askHost(ctx context.Context, q HostQuestion) (approval.Resolution, error) {
	key := approval.Grant{Tool: approval.HostTool, Workspace: d.opts.Workspace, Phrase: q.phrase()}
	c, err := d.describeHost(q)
	if err != nil {
		return approval.Resolution{}, err
	}
	stored := d.storedAboutHost(q.CallID, key)
	if d.opts.Decider.CoversHosts() && stored != approval.DecisionDeny {
		a, failed := d.opts.Decider.Decide(ctx, approval.Case{Confirmation: c, Dir: d.opts.Workspace, Prompt: true})
		if ctx.Err() != nil {
			return approval.Resolution{CallID: c.CallID, Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: approval.ByCancel}, nil
		}
		stored = d.storedAboutHost(q.CallID, key) // it may have changed in the meantime
		switch {
		case stored == approval.DecisionDeny:
		case a.Decision == approval.DecisionAsk:
			if err := d.warnOfHost(c.CallID, a, failed); err != nil {
				return approval.Resolution{}, err
			}
			c.Scopes, c.Phrase, stored = []approval.Scope{approval.ScopeOnce}, "", ""
		case a.Decision == approval.DecisionDeny, d.opts.Decider.MayAllow && q.Addr == "": // a private address is for a person
			r, err := d.reportRuling(c, a, failed, d.out.emit)
			return r, cmp.Or(err, failed) // programs don't see its cause
		}
	}
	if stored != "" {
		r := approval.Resolution{CallID: q.CallID, Decision: stored, Scope: approval.ScopeAlways, By: approval.ByGrant}
		return r, d.out.emit(ConfirmationResolved{r})
	}
	c.Seq, c.Expires = int(d.confirmations.Add(1)), time.Now().Add(d.opts.ConfirmTimeout)
	if d.opts.Broker == nil {
		if err := d.out.emit(ConfirmationRequested{c}); err != nil {
			return approval.Resolution{}, err
		}
		r := approval.Resolution{RequestID: c.ID, CallID: q.CallID, Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: approval.ByOnPrompt}
		return r, d.out.emit(ConfirmationResolved{r})
	}
	request := d.opts.Broker.Request(ctx, c)
	if err := d.out.emit(ConfirmationRequested{c}); err != nil {
		d.opts.Broker.Record(request, approval.Resolution{}, err)
		return approval.Resolution{}, err
	}
	d.opts.Broker.Deliver(request)
	none := func() (approval.Decision, bool) { return "", false }
	r := d.resolveHost(c, d.opts.Broker.Wait(request, &d.answers, none), key)
	err = d.out.emit(ConfirmationResolved{r})
	if err != nil && r.Scope == approval.ScopeAlways && r.Decision == approval.DecisionAllow {
		_, _ = d.opts.Grants.AnsweredBy(r.Client).Revoke(key.SameKey) // an answer that no client learns of must not last
	}
	d.opts.Broker.Record(request, r, err)
	return r, err
}

// storedAboutHost returns the stored answer about a host, or "".
func (d *Dispatcher) storedAboutHost(call string, key approval.Grant) approval.Decision {
	if d.opts.Grants == nil {
		return ""
	}
	decision, found, err := d.opts.Grants.Find(key)
	if err != nil {
		_ = d.out.emit(Warning{CallID: call, Message: "stored approvals could not be read and were ignored: " + err.Error()})
	}
	if err != nil || !found {
		return ""
	}
	return decision
}

// warnOfHost says why a person must see a host: the decider wants it, or has failed.
func (d *Dispatcher) warnOfHost(call string, a approval.Answer, failed error) error {
	message := "the decider wants a person to see this host"
	if failed != nil {
		message = failed.Error()
	} else if a.Reason != "" {
		message += ": " + a.Reason
	}
	return d.out.emit(Warning{CallID: call, Message: message})
}

// resolveHost returns the resolution for a reply. It stores an answer of scope
// always.
func (d *Dispatcher) resolveHost(c approval.Confirmation, first approval.Reply, key approval.Grant) approval.Resolution {
	r := approval.Resolution{
		RequestID: c.ID, CallID: c.CallID, Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: first.By,
		Client: first.Client, Reason: first.Answer.Reason,
	}
	switch first.By {
	case approval.ByTimeout:
		r.Decision = approval.DecisionTimeout
		return r
	case approval.ByUser:
	default:
		return r
	}
	if first.Answer.Decision == approval.DecisionAllow {
		r.Decision = approval.DecisionAllow
	}
	if first.Answer.Scope == approval.ScopeAlways && slices.Contains(c.Scopes, approval.ScopeAlways) && d.opts.Grants != nil && d.opts.Workspace != "" {
		key.Decision = r.Decision
		if err := d.opts.Grants.AnsweredBy(first.Client).Add(key); err != nil {
			_ = d.out.emit(Warning{CallID: c.CallID, Message: "the answer could not be stored and holds for this command only: " + err.Error()})
			return r
		}
		r.Scope = approval.ScopeAlways
	}
	return r
}

func (d *Dispatcher) describeHost(q HostQuestion) (approval.Confirmation, error) {
	exact, err := json.Marshal(q)
	if err != nil {
		return approval.Confirmation{}, fmt.Errorf("encode the question about a host: %w", err)
	}
	input, hidden := inputForDisplay(exact)
	summary, _ := tools.Display("connect to " + q.phrase())
	dir, _ := tools.Display(d.opts.Workspace)
	c := approval.Confirmation{
		Question: approval.Question{
			ID: randomHex(16), CallID: q.CallID, Name: approval.HostTool, Class: tools.ClassNetwork, Runs: tools.PlaceSandbox,
			Input: input, Summary: summary, InputHash: hashInput(exact), Hidden: hidden, Scopes: []approval.Scope{approval.ScopeOnce},
		},
		Workspace: dir, Exact: exact, Expires: time.Now().Add(d.opts.ConfirmTimeout),
	}
	if q.Display != "" && q.Display != q.Host {
		name, _ := tools.Display(q.Display)
		c.Notices = append(c.Notices, "the name is not in ASCII: "+name+" is "+q.Host)
	}
	if d.opts.Grants != nil && d.opts.Workspace != "" {
		c.Scopes = append(c.Scopes, approval.ScopeAlways)
		c.Phrase, _ = tools.Display(q.phrase())
	}
	return c, nil
}
