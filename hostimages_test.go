package caisson

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
)

func TestImageAccounts(t *testing.T) {
	for uid, want := range map[int]string{-1: "agent:10001", 0: "agent:10001", 10001: "agent:10001", 1000: "agent:10001 runner:1000"} {
		var got []string
		all := imageAccounts(uid, uid)
		last := len(all) - sandbox.MaxIdentity
		if diff := cmp.Diff(sandbox.IdentityAccounts(sandbox.CommandUID, sandbox.CommandGID), all[last:]); diff != "" {
			t.Error(diff)
		}
		for _, a := range all[:last] {
			got = append(got, fmt.Sprintf("%s:%d", a.Name, a.UID))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("uid %d: %v, want %s", uid, got, want)
		}
	}
}

func TestBuilderGetsNoSecrets(t *testing.T) {
	got := builderEnviron([]string{"PATH=/bin", "OPENAI_API_KEY=secret", "HTTPS_PROXY=http://proxy", "AWS_SECRET_ACCESS_KEY=secret"})
	if diff := cmp.Diff([]string{"PATH=/bin", "HTTPS_PROXY=http://proxy"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}
