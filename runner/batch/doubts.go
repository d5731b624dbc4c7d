package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// doubts are reasons for a verifier's failure that may not be the agent's work: hosts,
// with how connections to them ended, and limits that the verifier reached.
type doubts map[string]string

const doubtLimit = "limit"

// failedEndings are the endings of connections that were refused or reset or took too
// long.
var failedEndings = []string{rule.ReasonResolve, rule.ReasonConnect, rule.ReasonTimeout, egress.EndingHost, egress.EndingIdle}

// outsideEndings are the failedEndings that only the network can cause. A host may also
// end or leave a connection because of what a program sends.
var outsideEndings = []string{rule.ReasonResolve, rule.ReasonConnect, rule.ReasonTimeout}

// doubtPartly is how connections to a host ended if some succeeded.
const doubtPartly = "failed at times"

// doubtContacted is, in the control's doubts, the value of a host that was reached.
const doubtContacted = "reached"

// addConnections adds the failed connections in a session's records, and for the
// control the others too.
func (v *verification) addConnections(dir string) error {
	var closed []record.NetworkClosed
	s, err := trace.Find("", dir+string(filepath.Separator))
	if err == nil {
		_, err = trace.Read(s, func(r record.Record) {
			if c, ok := record.DecodePayload(r).(record.NetworkClosed); ok {
				closed = append(closed, c)
			}
		})
	}
	if err != nil {
		return &infraError{RecordsUnwritable, err}
	}
	v.doubts.addConnections(closed, v.control)
	return nil
}

func (d doubts) addConnections(closed []record.NetworkClosed, control bool) {
	reached := map[string]bool{}
	for _, c := range closed {
		isSilent := c.Ending == rule.ReasonTimeout && c.Addr != "" && c.Sent == 0 // the program sent nothing
		switch {
		case slices.Contains(failedEndings, c.Ending) && !isSilent:
			d[c.Host] = c.Ending
		case c.Ending != egress.EndingCanceled || c.Addr != "": // it was connected
			reached[c.Host] = true
		}
	}
	for host := range reached {
		switch how := d[host]; {
		case slices.Contains(outsideEndings, how):
			d[host] = doubtPartly
		case how == "" && control:
			d[host] = doubtContacted
		}
	}
}

// confirmDoubts returns the doubts that are not the agent's work.
//
// The agent's files can make the verifier connect anywhere and reach any limit. So a
// doubt counts only if a verifier without these files, the control, fails in the same
// way, or if no connection to a host succeeded that the control contacts too. This is
// decided before the verifier runs again: an agent that could choose to be verified
// twice would pass flaky tests more often. The time limit never counts, because tests
// may wait for something that the agent should have made. The oracle has no reason to
// make a verifier fail, so all of its doubts count.
func (v *verification) confirmDoubts(ctx context.Context) (doubts, error) {
	if v.trial.Agent == Oracle {
		return maps.Clone(v.doubts), nil
	}
	delete(v.doubts, string(limits.KindWallTime))
	if len(v.doubts) == 0 {
		return nil, nil
	}
	control := *v
	control.control = true
	control.acted = false
	control.sessions = nil
	control.out = filepath.Join(v.out, ControlDir)
	failed := control.runOnce(ctx)
	v.sessions = append(v.sessions, control.sessions...)
	if errors.As(failed, new(*infraError)) {
		return nil, failed
	}
	return v.doubts.confirmedBy(control.doubts), nil
}

// confirmedBy returns the doubts that the control's confirm not to be the agent's work.
func (d doubts) confirmedBy(control doubts) doubts {
	confirmed := maps.Clone(d)
	maps.DeleteFunc(confirmed, func(what, how string) bool {
		found := control[what]
		return found == "" || found == doubtContacted && !slices.Contains(outsideEndings, how)
	})
	return confirmed
}

// judgeDoubts returns a suspect failure if there are doubts, otherwise err.
func (v *verification) judgeDoubts(err error) error {
	if len(v.doubts) == 0 {
		return err
	}
	class, reasons := VerifierLimit, []string{}
	for _, what := range slices.Sorted(maps.Keys(v.doubts)) {
		how := v.doubts[what]
		if how != doubtLimit {
			class = VerifierNetwork
		}
		reasons = append(reasons, fmt.Sprintf("%s (%s)", what, how))
	}
	if late, ok := errors.AsType[*failure](err); ok && late.class == VerifierTimeout && class == VerifierLimit {
		class = VerifierTimeout
	}
	return &failure{class, fmt.Errorf("the verifier failed for reasons that are not the agent's: %s", strings.Join(reasons, ", ")), true}
}
