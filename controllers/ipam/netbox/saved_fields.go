package netbox

import (
	"encoding/json"
	"strings"
)

// savedFields are what a tenant's address had before a Service got it, as far as the record has no room
// for it meanwhile: the status, the description, if it does not fit behind the mark, and the DNS name, if
// the Service's has taken its place. They stand in a line of the record's comments, and are put
// back when the address is reserved again. A record with a status in that line is the tenant's, and is not
// deleted, even if the group that releases the address takes its addresses from prefixes by then.
type savedFields struct {
	Status      string `json:"status,omitempty"`
	Description string `json:"description,omitempty"`
	DNSName     string `json:"dnsName,omitempty"`
}

// savedFieldsPrefix begins the line, and paragraph is between the comments and the line.
const (
	savedFieldsPrefix = "PureLB puts back: "
	paragraph         = "\n\n"
)

// savedFields returns what is saved of an address, and the comments without it. A line that cannot be read
// is left where it is.
func (a *ipAddress) savedFields() (k savedFields, comments string) {
	at := strings.Index("\n"+a.Comments, "\n"+savedFieldsPrefix)
	if at < 0 {
		return savedFields{}, a.Comments
	}
	line, after, _ := strings.Cut(a.Comments[at+len(savedFieldsPrefix):], "\n")
	if json.Unmarshal([]byte(line), &k) != nil {
		return savedFields{}, a.Comments
	}
	k.Description = cutRunes(k.Description, maxDescription)
	before := strings.TrimRight(a.Comments[:at], "\r\n") // what a browser sends has both
	after = strings.TrimLeft(after, "\r\n")
	if before != "" && after != "" {
		before += paragraph
	}
	return k, before + after
}

// withSavedFields returns comments that end in saved fields.
func withSavedFields(comments string, k savedFields) string {
	if k == (savedFields{}) {
		return comments
	}
	line, _ := json.Marshal(k) // texts can always be encoded
	if comments != "" {
		comments += paragraph
	}
	return comments + savedFieldsPrefix + string(line)
}

// descriptionAndComments returns the description and the comments of an address of the tenant that becomes that of
// an owner with a mark. setsName says that the owner gets a DNS name.
func (a *ipAddress) descriptionAndComments(mark string, setsName bool) (description, comments string) {
	original := a.originalDescription()
	description, isWhole := withDescription(mark, original)
	k, comments := a.savedFields()
	k.Status, k.Description = statusReserved, ""
	if !isWhole {
		k.Description = original
	}
	if !a.isMarked() { // otherwise its DNS name is the last owner's
		k.DNSName = ""
		if setsName {
			k.DNSName = a.DNSName
		}
	}
	return description, withSavedFields(comments, k)
}

// originalDescription returns the description that an address had before it got a mark, or has
// got since then.
func (a *ipAddress) originalDescription() string {
	own := a.ownDescription()
	k, _ := a.savedFields()
	if !a.isMarked() || k.Description == "" {
		return own
	}
	mark, _, _ := strings.Cut(a.Description, descriptionSeparator)
	if written, _ := withDescription(mark, k.Description); own != "" && written != a.Description {
		return own // somebody has changed it
	}
	return k.Description
}

// withDescription returns a mark and a description behind it, and whether that is there as a whole.
// NetBox cuts spaces from the end.
func withDescription(mark, own string) (text string, isWhole bool) {
	room := maxDescription - len([]rune(mark)) - len(descriptionSeparator)
	if shown := strings.TrimSpace(cutRunes(own, max(room, 0))); shown != "" {
		return mark + descriptionSeparator + shown, shown == own
	}
	return mark, own == ""
}
