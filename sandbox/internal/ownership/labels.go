package ownership

import (
	"fmt"
	"strconv"
	"time"
)

// The labels of a container. Their prefix is the project's name reversed, as
// Docker's guidelines for labels demand.
const (
	LabelSchema       = "io.caisson.schema"
	LabelSession      = "io.caisson.session"
	LabelInstance     = "io.caisson.instance"
	LabelBoot         = "io.caisson.boot"
	LabelPIDNamespace = "io.caisson.pidns"
	LabelPID          = "io.caisson.pid"
	LabelStart        = "io.caisson.start"
	LabelLease        = "io.caisson.lease"
)

// schemaVersion is the version of the set of labels. Containers with another
// one are not touched.
const schemaVersion = "1"

// Labels returns the owner and the session as labels of a container.
func (id Identity) Labels(session string) map[string]string {
	return map[string]string{
		LabelSchema:       schemaVersion,
		LabelSession:      session,
		LabelInstance:     id.Instance,
		LabelBoot:         id.Boot,
		LabelPIDNamespace: id.PIDNamespace,
		LabelPID:          strconv.Itoa(id.PID),
		LabelStart:        strconv.FormatUint(id.Start, 10),
		LabelLease:        id.Lease.UTC().Format(time.RFC3339),
	}
}

// FromLabels is the inverse of [Identity.Labels]. It returns an error for
// labels of another schema and for labels that Labels can't have written: such
// a container has no known owner and is left alone.
func FromLabels(labels map[string]string) (id Identity, session string, err error) {
	if v := labels[LabelSchema]; v != schemaVersion {
		return Identity{}, "", fmt.Errorf("parse owner labels: schema %q is not %q", v, schemaVersion)
	}
	session = labels[LabelSession]
	if !isPlainWord(session) {
		return Identity{}, "", fmt.Errorf("parse owner labels: session %q", session)
	}
	id = Identity{
		Instance:     labels[LabelInstance],
		Boot:         labels[LabelBoot],
		PIDNamespace: labels[LabelPIDNamespace],
	}
	if id.PID, err = strconv.Atoi(labels[LabelPID]); err != nil || id.PID <= 0 {
		return Identity{}, "", fmt.Errorf("parse owner labels: pid %q", labels[LabelPID])
	}
	if id.Start, err = strconv.ParseUint(labels[LabelStart], 10, 64); err != nil {
		return Identity{}, "", fmt.Errorf("parse owner labels: start time: %w", err)
	}
	if id.Lease, err = time.Parse(time.RFC3339, labels[LabelLease]); err != nil {
		return Identity{}, "", fmt.Errorf("parse owner labels: lease: %w", err)
	}
	return id, session, nil
}
