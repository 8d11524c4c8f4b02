//! Doubly linked lists of numbered things that are in one list at a time: all links in one allocation, every step constant.

/// No member.
pub(crate) const NONE: u32 = u32::MAX;

/// The links of all members of all lists.
#[derive(Debug)]
pub(crate) struct Links {
    /// Towards the tail.
    next: Vec<u32>,
    /// Towards the head.
    previous: Vec<u32>,
}

impl Links {
    pub(crate) fn new(members: usize) -> Links {
        Links { next: vec![NONE; members], previous: vec![NONE; members] }
    }

    /// The member before this one, towards the head.
    pub(crate) fn before(&self, member: u32) -> Option<u32> {
        Some(self.previous[member as usize]).filter(|n| *n != NONE)
    }
}

/// One list.
#[derive(Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl List {
    pub(crate) fn new() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn tail(&self) -> Option<u32> {
        Some(self.tail).filter(|n| *n != NONE)
    }

    pub(crate) fn push_head(&mut self, links: &mut Links, member: u32) {
        links.previous[member as usize] = NONE;
        links.next[member as usize] = self.head;
        match self.head {
            NONE => self.tail = member,
            head => links.previous[head as usize] = member,
        }
        self.head = member;
        self.len += 1;
    }

    pub(crate) fn push_tail(&mut self, links: &mut Links, member: u32) {
        links.next[member as usize] = NONE;
        links.previous[member as usize] = self.tail;
        match self.tail {
            NONE => self.head = member,
            tail => links.next[tail as usize] = member,
        }
        self.tail = member;
        self.len += 1;
    }

    /// Take out a member, which is in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, member: u32) {
        let (next, previous) = (links.next[member as usize], links.previous[member as usize]);
        match previous {
            NONE => self.head = next,
            previous => links.next[previous as usize] = next,
        }
        match next {
            NONE => self.tail = previous,
            next => links.previous[next as usize] = previous,
        }
        self.len -= 1;
    }

    /// From tail to head.
    #[cfg(test)]
    pub(crate) fn up_from_tail(&self, links: &Links) -> Vec<u32> {
        let mut all = Vec::new();
        let mut at = self.tail();
        while let Some(member) = at {
            all.push(member);
            at = links.before(member);
        }
        assert_eq!(all.len(), self.len, "a list knows its length");
        all
    }
}
