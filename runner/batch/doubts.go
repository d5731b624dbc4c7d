package batch

import (
	"context"
	"encoding/json"
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

// doubts are reasons why a verifier may have failed that are not the agent's work: hosts, with
// how connections to them ended, and limits that its command reached.
type doubts map[string]string

// doubtLimit is the value of a limit in doubts.
const doubtLimit = "limit"

// failedEndings are how connections end that were refused or reset or took too long.
var failedEndings = []string{rule.ReasonResolve, rule.ReasonConnect, rule.ReasonTimeout, egress.EndingHost, egress.EndingIdle}

// outsideEndings are the failedEndings that only the network can cause. A host ends or leaves a
// connection because of what a program sends, too.
var outsideEndings = []string{rule.ReasonResolve, rule.ReasonConnect, rule.ReasonTimeout}

// doubtContacted is the value in doubts of a host that was reached, in the control.
const doubtContacted = "reached"

// addConnections adds the failed connections of the session whose records are in a directory,
// and in the control the others.
func (v *verification) addConnections(dir string) error {
	s, err := trace.Find("", dir+string(filepath.Separator))
	if err == nil {
		_, err = trace.Read(s, func(r record.Record) {
			var c record.NetworkClosed
			switch {
			case r.Kind != c.Kind() || json.Unmarshal(r.Payload, &c) != nil:
			case slices.Contains(failedEndings, c.Ending):
				v.doubts[c.Host] = c.Ending
			case v.control && v.doubts[c.Host] == "":
				v.doubts[c.Host] = doubtContacted
			}
		})
	}
	if err != nil {
		return &infraError{RecordsUnwritable, err}
	}
	return nil
}

// confirmDoubts returns the doubts that are not the agent's work.
//
// The agent's files can make the verifier connect anywhere and reach any limit. So a doubt
// counts only if a verifier without them, the control, fails in the same way, or if no connection
// came about to a host that the control contacts as well. This is found out before the verifier
// runs again: an agent that could choose to be verified twice would pass a test more often whose
// result is not always the same. The time limit never counts, since tests may wait for something
// that the agent should have made. The oracle has no reason to make a verifier fail: all of its
// doubts count.
func (v *verification) confirmDoubts(ctx context.Context) (doubts, error) {
	if v.trial.Agent == Oracle {
		return maps.Clone(v.doubts), nil
	}
	delete(v.doubts, string(limits.KindWallTime))
	if len(v.doubts) == 0 {
		return nil, nil
	}
	control := *v
	control.control, control.acted, control.sessions, control.out = true, false, nil, filepath.Join(v.out, ControlDir)
	failed := control.runOnce(ctx)
	v.sessions = append(v.sessions, control.sessions...)
	if errors.As(failed, new(*infraError)) {
		return nil, failed
	}
	return v.doubts.confirmedBy(control.doubts), nil
}

// confirmedBy returns the doubts that those of the control show not to be the agent's work.
func (d doubts) confirmedBy(control doubts) doubts {
	confirmed := maps.Clone(d)
	maps.DeleteFunc(confirmed, func(what, how string) bool {
		found := control[what]
		return found == "" || found == doubtContacted && !slices.Contains(outsideEndings, how)
	})
	return confirmed
}

// judgeDoubts returns a suspect failure if there are doubts, or else err.
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
