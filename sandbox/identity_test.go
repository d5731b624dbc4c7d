package sandbox

import "testing"

// useradd and groupadd give the number after the largest one up to 60000, so an
// account there would keep the first user of an image from being 1000.
func TestIdentitiesAreNoUsers(t *testing.T) {
	for _, taken := range []int{CommandUID, IdentityBase(0, 0) + 1} {
		for _, a := range IdentityAccounts(taken, CommandGID) {
			if a.UID <= 60000 || a.UID >= 61184 || a.GID != a.UID || a.UID == taken {
				t.Errorf("where commands are %d, %s is %d:%d", taken, a.Name, a.UID, a.GID)
			}
		}
	}
}
