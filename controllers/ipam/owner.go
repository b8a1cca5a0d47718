package ipam

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Owner is a Service that an address is allocated to.
type Owner struct {
	Namespace, Name string
	UID             types.UID
}

// String is namespace/name.
func (o Owner) String() string { return o.Namespace + "/" + o.Name }

// MaxMark is how long a mark is at most, in bytes. NetBox stores descriptions of 200, in
// which an address stands behind the mark.
const MaxMark = 160

// markBegin begins all marks.
const markBegin = "purelb "

// installationIDPattern matches the ids that an installation may have. A UID is one.
var installationIDPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?$`)

// CheckInstallationID returns an error for a text that cannot be the id of an installation:
// marks begin with it, have room for 36 bytes, and are found by their beginnings.
func CheckInstallationID(id string) error {
	if !installationIDPattern.MatchString(id) {
		return fmt.Errorf("%q is no id of an installation: it has to be 1 to 36 characters of a-z, 0-9 and -, "+
			"the first and the last one a letter or a digit", textlimit.Shorten(id, maxQuotedID))
	}
	return nil
}

// maxQuotedID is how much of a wrong id an error quotes, in bytes.
const maxQuotedID = 60

// MarkPrefix returns the text with which the marks of all owners of an installation begin.
func MarkPrefix(installationID types.UID) string { return markBegin + string(installationID) + "/" }

// Mark returns the text by which a system tells whose an address is:
// "purelb cluster/namespace/name/uid". The cluster is the id of its installation, which is a
// uid unless an administrator has chosen another one. The uids tell apart clusters, and a
// Service from one of the same name before it. Where the whole is longer than MaxMark, the end of the
// namespace and name is replaced by their hash.
func (o Owner) Mark(installationID types.UID) string {
	begin, end := MarkPrefix(installationID), "/"+string(o.UID)
	name := o.String()
	if room := MaxMark - len(begin) - len(end); len(name) > room {
		const hashLength = 12
		sum := sha256.Sum256([]byte(name))
		kept := max(room-hashLength-1, 0)
		name = name[:kept] + "~" + hex.EncodeToString(sum[:])[:hashLength]
	}
	return begin + name + end
}

// DescribeMark says in short whose a mark of the installation is.
func DescribeMark(mark string, installationID types.UID) string {
	name, isOurs := strings.CutPrefix(mark, MarkPrefix(installationID))
	if i := strings.LastIndexByte(name, '/'); isOurs && i > 0 {
		return "Service " + name[:i]
	}
	return mark
}
