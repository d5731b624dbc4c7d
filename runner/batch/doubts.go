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

// addConnections adds the failed connections of the session whose records are in a directory.
func (d doubts) addConnections(dir string) error {
	s, err := trace.Find("", dir+string(filepath.Separator))
	if err == nil {
		_, err = trace.Read(s, func(r record.Record) {
			var c record.NetworkClosed
			if r.Kind == c.Kind() && json.Unmarshal(r.Payload, &c) == nil && slices.Contains(failedEndings, c.Ending) {
				d[c.Host] = c.Ending
			}
		})
	}
	if err != nil {
		return &infraError{RecordsUnwritable, err}
	}
	return nil
}

// checkDoubts returns the error of a verification that failed with doubts: a suspect failure
// if they are not the agent's work, or else err.
//
// The agent's files can make the verifier connect anywhere and reach any limit. So a doubt
// counts only if the verifier fails in the same way without them. Its time limit never counts,
// since tests may wait for something that the agent should have made. The oracle has no reason
// to make a verifier fail: all of its doubts count.
func (v *verification) checkDoubts(ctx context.Context, err error) error {
	if v.trial.Agent != Oracle {
		delete(v.doubts, string(limits.KindWallTime))
		if len(v.doubts) == 0 {
			return err
		}
		control := *v
		control.control, control.acted, control.sessions, control.out = true, false, nil, filepath.Join(v.out, ControlDir)
		failed := control.runOnce(ctx)
		v.sessions = append(v.sessions, control.sessions...)
		if errors.As(failed, new(*infraError)) {
			return failed
		}
		maps.DeleteFunc(v.doubts, func(what, _ string) bool { return control.doubts[what] == "" })
	}
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
