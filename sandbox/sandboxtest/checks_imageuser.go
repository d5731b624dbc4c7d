package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// The user of [WriteUserTree], with its groups in the image.
const (
	imageUser                 = "member"
	imageUID, imageGID        = 2345, 2346
	imageHome                 = "/home/" + imageUser
	imageGroup, imageOthers   = 2347, 2348
	userPasswd, userGroupText = "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\nmember:x:2345:2346:A member:/home/member:/bin/sh\n",
		"root:x:0:member\nmember:x:2346:\nothers:x:2348:toor,member\nteam:x:2347:member\n"
)

// WriteUserTree writes the tree of [WriteOpenTree], and what the checks of an
// image's user expect in addition.
func WriteUserTree(root string) error {
	err := WriteOpenTree(root)
	home := filepath.Join(root, imageHome)
	err = errors.Join(err, os.MkdirAll(home, 0o755), os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(userPasswd), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte(userGroupText), 0o644))
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(home, imageUID, imageGID))
	}
	return err
}

func imageUserChecks() []check {
	return []check{
		{name: "commands are the image's user", user: true, run: checkImageUser},
		{name: "the image's user has its home", user: true, writable: true, run: checkImageHome},
		{name: "an image's user that can't be is refused", user: true, run: checkImageUserRefused},
	}
}

func (e *env) startImageUser(ctx context.Context, name, user string, change func(*env)) (*env, error) {
	return e.startUser(ctx, name, sandbox.UserImage, e.target.UserImageRefused, func(other *env) {
		other.image = e.target.UserImage(user)
		change(other)
	})
}

// plantGroups adds root's files that are readable for the workspace's group,
// and for the host's group with the number of one of the image's.
func plantGroups(e *env) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for name, group := range map[string]int{"own-group": ownerID, "image-group": imageGroup} {
		path := filepath.Join(e.workspace, name)
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chown(path, 0, group), os.Chmod(path, 0o640)); err != nil {
			return err
		}
	}
	return nil
}

// checkImageUser asserts that commands have the image's user and groups and no
// privilege, and that none of this reaches the host.
func checkImageUser(ctx context.Context, shared *env) (err error) {
	e, err := shared.startImageUser(ctx, "image-user", imageUser, func(e *env) { e.plant = plantGroups })
	if e == nil || err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	a, groups := e.sb.Attestation(), f.Groups
	f.Groups = 0
	wrong := errors.Join(
		compareSetting("uid", f.EUID, imageUID), compareSetting("gid", f.EGID, imageGID), compareSetting("groups", groups, 2), e.checkUnprivileged(f),
		compareSetting("attested policy", a.UserPolicy, string(sandbox.UserImage)), compareSetting("attested user", a.User, fmt.Sprintf("%d:%d", imageUID, imageGID)),
	)
	if got := slices.Sorted(slices.Values(a.Groups)); !slices.Equal(got, []uint32{imageGroup, imageOthers}) {
		wrong = errors.Join(wrong, fmt.Errorf("the groups %v are attested", a.Groups))
	}
	return errors.Join(wrong, expectVariables(ctx, e, "USER="+imageUser, "LOGNAME="+imageUser, "HOME="+sandbox.HomeDir), checkImageFiles(ctx, e), checkImageIdentity(ctx, e))
}

func expectVariables(ctx context.Context, e *env, want ...string) error {
	out, err := e.expectOutput(ctx, "env")
	if err != nil {
		return err
	}
	return containsVariables(out, want...)
}

// containsVariables asserts that the verb env printed these variables.
func containsVariables(out string, want ...string) error {
	have := strings.Split(out, "\x00")
	for _, v := range want {
		if !slices.Contains(have, v) {
			return fmt.Errorf("the environment lacks %s: %q", v, have)
		}
	}
	return nil
}

func checkImageFiles(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "touch", "made-by-image-user"); err != nil {
		return err
	}
	owner, err := ownerOf(e.workspace)
	if err != nil {
		return err
	}
	made, err := ownerOf(filepath.Join(e.workspace, "made-by-image-user"))
	if err != nil {
		return err
	}
	wrong := compareSetting("owner of a file that the image's user made", made, owner)
	if os.Geteuid() != 0 {
		return wrong // all files are this user's
	}
	for name, readable := range map[string]bool{"own-group": true, "image-group": false} {
		r, err := e.runProbe(ctx, "read", name)
		if err != nil {
			return err
		}
		if r.Status.Success() != readable {
			wrong = errors.Join(wrong, fmt.Errorf("reading a file of %s ends with %s", name, r.Status))
		}
	}
	return wrong
}

// checkImageIdentity asserts that another identity shares nothing with the
// image's user, and can't reach its processes.
func checkImageIdentity(ctx context.Context, e *env) error {
	f, err := factsAs(ctx, e, 1)
	if err != nil {
		return err
	}
	if err := e.checkUnprivileged(f); err != nil || f.UID == imageUID || f.GID != f.UID {
		return errorf("identity 1 is user %d and group %d: %w", f.UID, f.GID, err)
	}
	reached, err := attackIdentity(ctx, e, 0, 1)
	if err == nil && len(reached) > 0 {
		err = fmt.Errorf("identity 1 reaches of the image's user %q", reached)
	}
	return err
}

// checkImageHome: with a writable root the user has its home in the image, and
// may write nothing else.
func checkImageHome(ctx context.Context, shared *env) (err error) {
	e, err := shared.startImageUser(ctx, "image-home", imageUser, func(e *env) { e.root = true })
	if e == nil || err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	if e.sb.Attestation().Rootless { // commands have the ID of the user who unpacked the image
		return expectVariables(ctx, e, "HOME="+imageHome)
	}
	out, err := e.expectOutput(ctx, "writable", "/", "/etc", "/etc/passwd", "/home", imageHome, openDir, openDir+"/file", sandbox.WorkspaceDir)
	if want := imageHome + "\n" + openDir + "\n" + openDir + "/file\n" + sandbox.WorkspaceDir + "\n"; err == nil && out != want {
		err = fmt.Errorf("writable: %q, want %q", out, want)
	}
	return errors.Join(err, expectVariables(ctx, e, "HOME="+imageHome))
}

func checkImageUserRefused(ctx context.Context, e *env) error {
	if e.target.UserImageRefused {
		return nil // another check asserts this
	}
	var wrong []error
	for i, user := range []string{"toor", "ghost", imageUser + ":ghosts", "61001"} {
		other, err := e.startImageUser(ctx, fmt.Sprintf("refused-%d", i), user, func(*env) {})
		if reason, ok := errors.AsType[*images.UserError](err); err != nil && (!ok || reason.Hint == "") {
			wrong = append(wrong, fmt.Errorf("USER %q: %w, want a UserError with a hint", user, err))
		}
		if err := other.expectRefused(ctx, err, sandbox.ErrInvalid, ""); err != nil {
			wrong = append(wrong, fmt.Errorf("USER %q: %w", user, err))
		}
	}
	return errors.Join(wrong...)
}
